//! Names that a graph gives to dimensions of its inputs: `[n, 3]` and `[n, 5]` are to have the same number of rows.
//!
//! The engine does not check them, and some graphs broadcast where names disagree. So they refuse nothing; they tell whose
//! mistake it is when a run fails.

use std::collections::BTreeMap;

use berth_spec::Tensor;
use serde::{Deserialize, Serialize};

/// The names that several dimensions of the inputs share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct NamedDimensions(Vec<Named>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Named {
    name: String,
    /// Index of the input, and of its dimension.
    places: Vec<(usize, usize)>,
}

impl NamedDimensions {
    /// Names that are shared among the names of each input's dimensions; a dimension without a name has an empty one.
    pub(super) fn of<'a>(inputs: impl Iterator<Item = Vec<&'a str>>) -> Self {
        let mut by_name: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
        for (input, names) in inputs.enumerate() {
            for (dimension, name) in names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                by_name.entry(name).or_default().push((input, dimension));
            }
        }
        let shared = by_name.into_iter().filter(|(_, places)| places.len() > 1);
        Self(shared.map(|(name, places)| Named { name: name.to_owned(), places }).collect())
    }

    /// The first name whose sizes differ among `inputs`, which are in the graph's order, in words; `None`: all agree.
    pub(super) fn disagreement(&self, inputs: &[Tensor]) -> Option<String> {
        self.0.iter().find_map(|named| {
            let mut places = named.places.iter().filter_map(|&(input, dimension)| {
                let tensor = inputs.get(input)?;
                Some((tensor.name.as_str(), dimension, *tensor.shape.get(dimension)?))
            });
            let (first, at, size) = places.next()?;
            let (other, there, unlike) = places.find(|(_, _, other)| *other != size)?;
            let name = &named.name;
            Some(format!(
                "inputs {first:?} and {other:?} do not fit together: dimension {at} of {first:?} is {size}, dimension \
                 {there} of {other:?} is {unlike}, and the model calls both {name:?}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::Datatype;

    use super::*;

    #[test]
    fn only_shared_names_count_and_the_first_that_differs_is_told() {
        let named = NamedDimensions::of([vec!["n", ""], vec!["n", "m"], vec!["k", ""]].into_iter());
        assert_eq!(named.0.len(), 1);
        let tensors = |shapes: [[i64; 2]; 3]| {
            let tensor = |(name, shape): (&str, [i64; 2])| Tensor {
                name: name.to_owned(),
                datatype: Datatype::Bool,
                shape: shape.to_vec(),
                data: bytes::Bytes::new(),
            };
            ["a", "b", "c"].into_iter().zip(shapes).map(tensor).collect::<Vec<_>>()
        };
        assert_eq!(named.disagreement(&tensors([[2, 1], [2, 5], [3, 4]])), None);
        let told = named.disagreement(&tensors([[2, 1], [4, 5], [2, 1]])).expect("they differ");
        assert!(told.contains("dimension 0 of \"a\" is 2") && told.contains("of \"b\" is 4"), "{told}");
        assert_eq!(NamedDimensions::default().disagreement(&tensors([[2, 1], [4, 5], [2, 1]])), None);
    }
}
