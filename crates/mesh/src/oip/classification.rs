//! The classification extension: the top classes of an output instead of its numbers.

use berth_spec::{Datatype, InferError, Tensor};
use half::{bf16, f16};

/// The `count` largest elements of each row, as BYTES of `value:index`, largest first; of equal ones the first. Where there is a
/// label for each element of a row it follows, `value:index:label`.
///
/// Rows are those of the first dimension, and the answer has shape `[rows, count]`; a tensor of one dimension is one row,
/// and its answer has shape `[count]`. Values have six digits after the point if the datatype has any, as in Triton.
/// NaN is less than everything.
pub(super) fn classify(output: &Tensor, count: u32, labels: &[String]) -> Result<Tensor, InferError> {
    let values = values(output)?;
    let rows = if output.shape.len() > 1 { usize::try_from(output.shape[0]).unwrap_or(0) } else { 1 };
    let classes = values.len().checked_div(rows).unwrap_or(0);
    let labels = if labels.len() == classes { labels } else { &[] };
    let count = classes.min(count as usize);
    let mut data = Vec::with_capacity(rows * count * 16);
    for row in values.chunks(classes.max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        let better = |&a: &usize, &b: &usize| row[b].order().cmp(&row[a].order()).then(a.cmp(&b));
        if count > 0 && count < order.len() {
            order.select_nth_unstable_by(count - 1, better);
            order.truncate(count);
        }
        order.sort_unstable_by(better);
        for index in order {
            let mut class = format!("{}:{index}", row[index].text());
            if let Some(label) = labels.get(index) {
                class.push(':');
                class.push_str(label);
            }
            // A number, an index and a label, which is no longer than 64 KiB: the length fits.
            data.extend_from_slice(&(class.len() as u32).to_le_bytes());
            data.extend_from_slice(class.as_bytes());
        }
    }
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let shape = if output.shape.len() > 1 { vec![output.shape[0], count] } else { vec![count] };
    Tensor::new(output.name.clone(), Datatype::Bytes, shape, data.into())
        .map_err(|error| InferError::Internal(format!("classes of an output do not make a tensor: {error}")))
}

/// A score, whole or not: 64-bit integers do not fit a double.
#[derive(Debug, Clone, Copy)]
enum Score {
    Whole(i128),
    Float(f64),
}

impl Score {
    /// Something ordered like the values; scores of one tensor are of one kind.
    fn order(self) -> i128 {
        match self {
            Self::Whole(value) => value,
            Self::Float(value) if value.is_nan() => i128::MIN,
            // The bits of a double are in its order once those of negative ones are turned around (IEEE 754, totalOrder);
            // adding zero makes both zeros one.
            Self::Float(value) => {
                let bits = (value + 0.0).to_bits().cast_signed();
                i128::from(bits ^ (((bits >> 63).cast_unsigned() >> 1).cast_signed()))
            }
        }
    }

    fn text(self) -> String {
        match self {
            Self::Whole(value) => value.to_string(),
            Self::Float(value) => format!("{value:.6}"),
        }
    }
}

fn values(output: &Tensor) -> Result<Vec<Score>, InferError> {
    let data = &output.data;
    Ok(match output.datatype {
        Datatype::Bool | Datatype::Uint8 => scores(data, |bytes| Score::Whole(u8::from_le_bytes(bytes).into())),
        Datatype::Uint16 => scores(data, |bytes| Score::Whole(u16::from_le_bytes(bytes).into())),
        Datatype::Uint32 => scores(data, |bytes| Score::Whole(u32::from_le_bytes(bytes).into())),
        Datatype::Uint64 => scores(data, |bytes| Score::Whole(u64::from_le_bytes(bytes).into())),
        Datatype::Int8 => scores(data, |bytes| Score::Whole(i8::from_le_bytes(bytes).into())),
        Datatype::Int16 => scores(data, |bytes| Score::Whole(i16::from_le_bytes(bytes).into())),
        Datatype::Int32 => scores(data, |bytes| Score::Whole(i32::from_le_bytes(bytes).into())),
        Datatype::Int64 => scores(data, |bytes| Score::Whole(i64::from_le_bytes(bytes).into())),
        Datatype::Fp16 => scores(data, |bytes| Score::Float(f16::from_le_bytes(bytes).into())),
        Datatype::Bf16 => scores(data, |bytes| Score::Float(bf16::from_le_bytes(bytes).into())),
        Datatype::Fp32 => scores(data, |bytes| Score::Float(f32::from_le_bytes(bytes).into())),
        Datatype::Fp64 => scores(data, |bytes| Score::Float(f64::from_le_bytes(bytes))),
        Datatype::Bytes => {
            return Err(InferError::Invalid(format!(
                "output {:?} is of BYTES, which cannot be classified: leave \"classification\" out",
                output.name
            )));
        }
    })
}

fn scores<const N: usize>(data: &[u8], score: impl Fn([u8; N]) -> Score) -> Vec<Score> {
    data.as_chunks::<N>().0.iter().map(|&element| score(element)).collect()
}

#[cfg(test)]
mod tests {
    use berth_spec::tensor::BytesElements;

    use super::*;

    fn classes(output: &Tensor, count: u32) -> (Vec<i64>, Vec<String>) {
        let answer = classify(output, count, &[]).expect("numbers can be classified");
        let texts = BytesElements::new(&answer.data)
            .map(|element| String::from_utf8(element.expect("whole").to_vec()).expect("ASCII"))
            .collect();
        (answer.shape, texts)
    }

    fn fp32(shape: &[i64], values: &[f32]) -> Tensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new("p".to_owned(), Datatype::Fp32, shape.to_vec(), data.into()).expect("a tensor")
    }

    #[test]
    fn the_largest_of_each_row_come_first() {
        let (shape, texts) = classes(&fp32(&[2, 3], &[0.1, 0.7, 0.2, -1.0, -3.0, -2.0]), 2);
        assert_eq!(shape, [2, 2]);
        assert_eq!(texts, ["0.700000:1", "0.200000:2", "-1.000000:0", "-2.000000:2"]);
    }

    #[test]
    fn more_classes_than_there_are_equal_ones_and_nan() {
        let (shape, texts) = classes(&fp32(&[5], &[f32::NAN, 1.0, 0.0, 1.0, f32::NEG_INFINITY]), 9);
        assert_eq!(shape, [5]);
        assert_eq!(texts, ["1.000000:1", "1.000000:3", "0.000000:2", "-inf:4", "NaN:0"]);
    }

    #[test]
    fn large_integers_keep_their_order() {
        let data: Vec<u8> = [u64::MAX - 1, u64::MAX].into_iter().flat_map(u64::to_le_bytes).collect();
        let tensor = Tensor::new("p".to_owned(), Datatype::Uint64, vec![1, 2], data.into()).expect("a tensor");
        assert_eq!(classes(&tensor, 1), (vec![1, 1], vec!["18446744073709551615:1".to_owned()]));
    }

    #[test]
    fn labels_follow_where_there_is_one_for_each_class() {
        let tensor = fp32(&[1, 2], &[0.25, 0.75]);
        let text = |labels: &[&str]| {
            let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
            let answer = classify(&tensor, 1, &labels).expect("numbers can be classified");
            String::from_utf8_lossy(&answer.data[4..]).into_owned()
        };
        assert_eq!((text(&["cat", "dog"]), text(&["cat"])), ("0.750000:1:dog".to_owned(), "0.750000:1".to_owned()));
    }

    #[test]
    fn nothing_to_classify() {
        assert_eq!(classes(&fp32(&[0, 3], &[]), 2).0, [0, 0]);
        assert_eq!(classes(&fp32(&[2, 0], &[]), 2).0, [2, 0]);
        let tensor = Tensor::new("p".to_owned(), Datatype::Bytes, vec![0], bytes::Bytes::new()).expect("a tensor");
        assert!(matches!(classify(&tensor, 1, &[]), Err(InferError::Invalid(_))));
    }
}
