//! Instructions in a model's path: words with `_` between them, as those of ModelMesh's example runtime.
//!
//! | path | the model |
//! |---|---|
//! | `SIZE_50000000_200_30` | has 50,000,000 bytes, takes 200 ms to load and 30 ms to unload; trailing numbers may be left out |
//! | `FAIL_text` | cannot be loaded: the text says why |
//! | `ONCE_text` | cannot be loaded the first time |
//! | `REFUSE_text` | is none: INVALID_ARGUMENT |
//! | `HANG` | is being loaded for ever |
//! | `STAY_2` | can be unloaded at the third attempt only |
//! | anything else | is loaded at once with the default size |

use std::time::Duration;

/// The behaviour of one model, read from its path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Script {
    /// Its size in bytes; `None`: the default.
    pub size: Option<u64>,
    /// The time of a load; none unless the path says.
    pub load: Duration,
    /// The time of unloading; none unless the path says.
    pub unload: Duration,
    /// The outcome of loads.
    pub outcome: Outcome,
    /// Attempts to unload it that fail first.
    pub stays: u32,
}

/// The outcome of a load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Loads succeed.
    #[default]
    Loaded,
    /// Loads fail with INTERNAL and this text.
    Fails(String),
    /// The first load fails with INTERNAL and this text; later ones succeed.
    FailsOnce(String),
    /// Loads fail with INVALID_ARGUMENT and this text.
    Refused(String),
    /// Loads never end.
    Hangs,
}

/// A path with a number that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} in the path {1:?} is no whole number")]
pub struct InvalidScript(String, String);

impl Script {
    /// Reads the script in a path. Fails if a number in it is none.
    pub fn of(path: &str) -> Result<Self, InvalidScript> {
        let (word, rest) = path.split_once('_').unwrap_or((path, ""));
        let number = |text: Option<&str>| match text {
            None | Some("") => Ok(0),
            Some(text) => text.parse::<u64>().map_err(|_| InvalidScript(text.to_owned(), path.to_owned())),
        };
        let ends = |outcome| Ok(Self { outcome, ..Self::default() });
        match word {
            "SIZE" => {
                let mut numbers = rest.split('_');
                let size = number(numbers.next())?;
                Ok(Self {
                    size: Some(size),
                    load: Duration::from_millis(number(numbers.next())?),
                    unload: Duration::from_millis(number(numbers.next())?),
                    ..Self::default()
                })
            }
            "FAIL" => ends(Outcome::Fails(rest.to_owned())),
            "ONCE" => ends(Outcome::FailsOnce(rest.to_owned())),
            "REFUSE" => ends(Outcome::Refused(rest.to_owned())),
            "HANG" => ends(Outcome::Hangs),
            "STAY" => Ok(Self { stays: u32::try_from(number(Some(rest))?).unwrap_or(u32::MAX), ..Self::default() }),
            _ => Ok(Self::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_say_what_happens() {
        let millis = Duration::from_millis;
        let sized = Script { size: Some(5), load: millis(200), unload: millis(30), ..Script::default() };
        assert_eq!(Script::of("SIZE_5_200_30"), Ok(sized));
        assert_eq!(Script::of("SIZE_5"), Ok(Script { size: Some(5), ..Script::default() }));
        assert_eq!(Script::of("FAIL_no_way").map(|script| script.outcome), Ok(Outcome::Fails("no_way".to_owned())));
        assert_eq!(Script::of("STAY_2").map(|script| script.stays), Ok(2));
        assert_eq!(Script::of("s3://b/k"), Ok(Script::default()));
        assert!(Script::of("SIZE_x").is_err());
    }
}
