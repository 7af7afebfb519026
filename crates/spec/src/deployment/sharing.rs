//! Equal settings, held once.

use std::sync::Arc;

use super::{Settings, Spec};

/// Settings that are remembered: more than a fleet usually mixes, and few enough to search at every declaration.
const KEPT: usize = 64;

/// Remembers the settings that came through lately, so that deployments with equal ones share them.
#[derive(Debug, Clone, Default)]
pub struct Sharing {
    /// The ones that were met last at the end.
    recent: Vec<Arc<Settings>>,
}

impl Sharing {
    /// Makes a spec share its settings with earlier ones that are equal, and gives up its room for growth.
    pub fn share(&mut self, spec: &mut Spec) {
        spec.model.uri.shrink_to_fit();
        match self.recent.iter().rposition(|known| *known == spec.settings) {
            Some(at) => {
                let last = self.recent.len() - 1;
                self.recent.swap(at, last);
                spec.settings = Arc::clone(&self.recent[last]);
            }
            None => {
                if self.recent.len() == KEPT {
                    self.recent.remove(0);
                }
                self.recent.push(Arc::clone(&spec.settings));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{self, ParseContext};

    fn spec(model: usize, priority: usize) -> Spec {
        let text = format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: m}}\n\
             spec: {{model: {{format: onnx, uri: \"https://example.org/{model}.onnx\"}}, priority: {priority}}}\n"
        );
        let context = ParseContext { file: "test".to_owned(), base: None, ..ParseContext::default() };
        manifest::parse(&text, &context).expect("a manifest").remove(0).spec
    }

    fn shared(sharing: &mut Sharing, mut spec: Spec) -> Spec {
        sharing.share(&mut spec);
        spec
    }

    #[test]
    fn equal_settings_are_held_once_and_written_to_apart() {
        let mut sharing = Sharing::default();
        let (one, mut other) = (shared(&mut sharing, spec(1, 7)), shared(&mut sharing, spec(2, 7)));
        assert!(Arc::ptr_eq(&one.settings, &other.settings));
        assert_eq!(other, spec(2, 7));
        other.priority = 8;
        assert_eq!((one.priority, other.priority), (7, 8));
        assert!(!Arc::ptr_eq(&one.settings, &shared(&mut sharing, other).settings));
    }

    #[test]
    fn what_is_met_often_stays_and_the_rest_is_bounded() {
        let mut sharing = Sharing::default();
        let often = shared(&mut sharing, spec(0, 100));
        for round in 0..3 {
            for priority in 1..=KEPT / 2 {
                shared(&mut sharing, spec(round, priority));
            }
            assert!(Arc::ptr_eq(&often.settings, &shared(&mut sharing, spec(round, 100)).settings));
        }
        for cores in 1..=2 * KEPT {
            let mut many = spec(0, 1);
            many.cpu = Some(0.5 * f32::from(u16::try_from(cores).expect("a few")));
            shared(&mut sharing, many);
        }
        assert_eq!(sharing.recent.len(), KEPT);
    }
}
