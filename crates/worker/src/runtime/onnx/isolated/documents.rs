//! Runs and their outputs as they go over the line to an engine's process.
//!
//! ```text
//! to it:    Document { json: {"outputs": […], "micros": N}, beside: the inputs }
//! from it:  u32 length of the head | head: [[datatype, shape, bytes], …] | padding to 8 | the outputs, one after the other
//! ```
//! The process is not trusted: what it sends is checked against the signature and its own lengths.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{Datatype, Tensor, TensorSpec, tensor::BytesElements, tensor::element_count};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::runtime::{
    batch::View,
    process::document::{Array, Document},
};

/// Data begins at multiples of this, so that the engine need not copy it to an aligned place.
const ALIGNED: usize = 8;

/// The JSON document of a run, beside which its inputs are arrays.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    /// Indices of the outputs that are wanted.
    pub(super) outputs: Vec<usize>,
    /// Microseconds that are left until the run's deadline.
    pub(super) micros: u64,
}

/// The run of `inputs`, which may take until `until`.
pub(super) fn request(names: &[Arc<str>], inputs: &[View<'_>], outputs: &[usize], until: Instant) -> Document {
    let left = until.saturating_duration_since(Instant::now());
    let micros = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
    let order = Order { outputs: outputs.to_vec(), micros };
    let mut json = serde_json::to_vec(&order).unwrap_or_default();
    // JSON may end with blanks.
    json.resize(json.len().next_multiple_of(ALIGNED), b' ');
    let beside = inputs.iter().enumerate().map(|(index, view)| Array {
        name: names.get(index).map_or_else(|| view.name.into(), Arc::clone),
        datatype: view.datatype,
        shape: view.shape.into(),
        data: Bytes::copy_from_slice(view.data),
    });
    Document { json: json.into(), beside: beside.collect() }
}

impl Order {
    /// The end of the run, as of now.
    pub(super) fn until(&self) -> Instant {
        let now = Instant::now();
        /// Far enough for any request, and near enough for every clock.
        const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
        now + Duration::from_micros(self.micros).min(LONGEST)
    }
}

/// The description of one output: its element type, its shape, its bytes.
type Described = (Datatype, Vec<i64>, usize);

/// The first bytes of an answer; the data of `outputs` follows.
pub(super) fn answer_head(outputs: &[Tensor]) -> Vec<u8> {
    let described: Vec<Described> =
        outputs.iter().map(|output| (output.datatype, output.shape.clone(), output.data.len())).collect();
    let json = serde_json::to_vec(&described).unwrap_or_default();
    let mut head = u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    head.extend_from_slice(&json);
    head.resize(head.len().next_multiple_of(ALIGNED), 0);
    head
}

/// Reads an answer: the outputs of `specs` whose indices are `wanted`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn outputs(answer: &Bytes, specs: &[TensorSpec], wanted: &[usize]) -> Result<Vec<Tensor>, String> {
    let (length, rest) = answer.split_first_chunk::<4>().ok_or("it is cut off")?;
    let length = u32::from_le_bytes(*length) as usize;
    let head = rest.get(..length).ok_or("its head is cut off")?;
    let described: Vec<Described> = serde_json::from_slice(head).map_err(|error| format!("its head: {error}"))?;
    if described.len() != wanted.len() {
        return Err(format!("it has {} outputs, not {}", described.len(), wanted.len()));
    }
    let mut at = (4 + length).next_multiple_of(ALIGNED);
    let mut tensors = Vec::with_capacity(wanted.len());
    for ((datatype, shape, bytes), &index) in described.into_iter().zip(wanted) {
        let spec = specs.get(index).ok_or("there is no such output")?;
        let end = at.checked_add(bytes).filter(|end| *end <= answer.len()).ok_or("its data is cut off")?;
        let data = answer.slice(at..end);
        at = end;
        let tensor = Tensor { name: spec.name.clone(), datatype, shape, data };
        if datatype != spec.datatype || !is_whole(&tensor) {
            return Err(format!("output {:?} is not what its head says", spec.name));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// True if the data has exactly the elements of the shape.
fn is_whole(tensor: &Tensor) -> bool {
    let Some(elements) = element_count(&tensor.shape) else { return false };
    match tensor.datatype.size() {
        Some(size) => elements.checked_mul(size) == Some(tensor.data.len()),
        None => {
            let mut read = 0;
            let mut count = 0_usize;
            for element in BytesElements::new(&tensor.data) {
                let Some(element) = element else { return false };
                read += 4 + element.len();
                count += 1;
            }
            count == elements && read == tensor.data.len()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn specs() -> Vec<TensorSpec> {
        let spec = |name: &str, datatype| TensorSpec { name: name.to_owned(), datatype, shape: vec![-1] };
        vec![spec("numbers", Datatype::Int64), spec("words", Datatype::Bytes)]
    }

    fn answered(outputs: &[Tensor]) -> Bytes {
        let mut bytes = answer_head(outputs);
        outputs.iter().for_each(|output| bytes.extend_from_slice(&output.data));
        bytes.into()
    }

    proptest! {
        #[test]
        fn what_the_engine_gave_arrives(numbers: Vec<i64>, words: Vec<String>) {
            let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let text: Vec<u8> =
                words.iter().flat_map(|word| [&(word.len() as u32).to_le_bytes(), word.as_bytes()].concat()).collect();
            let tensor = |name: &str, datatype, rows: usize, data: Vec<u8>| Tensor {
                name: name.to_owned(), datatype, shape: vec![rows as i64], data: data.into(),
            };
            let given = [
                tensor("words", Datatype::Bytes, words.len(), text),
                tensor("numbers", Datatype::Int64, numbers.len(), data),
            ];
            prop_assert_eq!(outputs(&answered(&given), &specs(), &[1, 0]), Ok(given.to_vec()));
        }

        #[test]
        fn noise_is_refused(noise: Vec<u8>) {
            prop_assert!(outputs(&noise.into(), &specs(), &[0]).is_err());
        }

        #[test]
        fn what_is_cut_or_lies_about_its_length_is_refused(numbers in proptest::collection::vec(any::<i64>(), 1..9), cut in 1_usize..8) {
            let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let whole = Tensor {
                name: "numbers".to_owned(), datatype: Datatype::Int64, shape: vec![numbers.len() as i64], data: data.into(),
            };
            let bytes = answered(std::slice::from_ref(&whole));
            prop_assert!(outputs(&bytes.slice(..bytes.len() - cut), &specs(), &[0]).is_err());
            let lies = Tensor { shape: vec![numbers.len() as i64 + 1], ..whole.clone() };
            prop_assert!(outputs(&answered(&[lies]), &specs(), &[0]).is_err());
            let other = Tensor { datatype: Datatype::Fp64, ..whole };
            prop_assert!(outputs(&answered(&[other]), &specs(), &[0]).is_err(), "another type than the signature's");
        }
    }

    #[test]
    fn a_run_says_what_it_wants_and_how_long_it_may_take() {
        let (shape, data) = ([2], [7; 16]);
        let view = View { name: "x", datatype: Datatype::Int64, shape: &shape, data: &data };
        let document = request(&["x".into()], &[view], &[1], Instant::now() + Duration::from_secs(5));
        let order: Order = serde_json::from_slice(&document.json).expect("an order");
        assert_eq!((order.outputs.as_slice(), document.json.len() % ALIGNED), ([1].as_slice(), 0));
        assert!((4_000_000..=5_000_000).contains(&order.micros), "{}", order.micros);
        assert_eq!(document.beside[0].data, data.as_slice());
        let _ = Order { outputs: Vec::new(), micros: u64::MAX }.until();
    }
}
