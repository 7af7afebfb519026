//! Tests if a model may be batched: its rows must not see each other. A first dimension that is variable everywhere is
//! a promise of the model's author; this checks it.

use std::time::{Duration, Instant};

use berth_spec::{Datatype, Signature, Tensor};

use super::{Engine, StopCondition, View, join::rows_of};
use crate::runtime::sample;

/// The difference that an output may have when its row is in a batch, relative and absolute: kernels add in another
/// order for other sizes.
const TOLERANCE: f64 = 2e-3;
/// The same for FP16 and BF16, of 11 and 8 significant bits.
const HALF_TOLERANCE: f64 = 4e-2;

/// Rows in the batch that is compared; the first and the last are run alone too.
const ROWS: usize = 3;

/// The values for variable dimensions, tried in this order: sequences and tables take any, images need room for their
/// kernels.
const SIZES: [i64; 4] = [2, 32, 224, 1];

/// The longest that all sample runs of a model may take. A model that needs longer for a few rows gains little by
/// joining them, and other models wait to be loaded meanwhile.
const TRIED_WITHIN: Duration = Duration::from_secs(10);

/// Runs sample rows alone and together.
///
/// # Errors
/// Why the model is not to be batched, as a sentence for people.
pub fn rows_are_independent(engine: &dyn Engine, signature: &Signature) -> Result<(), String> {
    let tensors = signature.inputs.iter().chain(&signature.outputs);
    for spec in tensors {
        if spec.shape.first() != Some(&-1) {
            let (name, shape) = (&spec.name, &spec.shape);
            return Err(format!("the first dimension of {name:?} {shape:?} is not variable"));
        }
    }
    let outputs: Vec<usize> = (0..signature.outputs.len()).collect();
    let stop = StopCondition::at(Instant::now() + TRIED_WITHIN);
    let run = |inputs: &[Tensor]| {
        let views: Vec<View<'_>> = inputs.iter().map(View::of).collect();
        engine.run(&views, &outputs, &stop).map_err(|error| error.to_string())
    };

    let mut failure = "its inputs are too large to be generated".to_owned();
    for size in SIZES {
        let Some(batch) = sample::rows(signature, ROWS, size) else { continue };
        let row = |index: usize| -> Vec<Tensor> { batch.iter().map(|input| rows_of(input, index, 1)).collect() };
        let (first, last) = match (run(&row(0)), run(&row(ROWS - 1))) {
            (Ok(first), Ok(last)) => (first, last),
            (Err(error), _) | (_, Err(error)) => {
                failure = format!("sample rows could not be run: {error}");
                continue;
            }
        };
        let together = run(&batch).map_err(|error| format!("rows that run alone fail together: {error}"))?;
        for (index, alone) in [(0, first), (ROWS - 1, last)] {
            compare(&together, &alone, index)?;
        }
        return Ok(());
    }
    Err(failure)
}

fn compare(together: &[Tensor], alone: &[Tensor], row: usize) -> Result<(), String> {
    for (together, alone) in together.iter().zip(alone) {
        let name = &together.name;
        if together.shape.first() != Some(&(ROWS as i64)) || alone.shape.first() != Some(&1) {
            return Err(format!("output {name:?} does not have one row per row of input"));
        }
        if !same(&rows_of(together, row, 1), alone) {
            return Err(format!("output {name:?} of a row depends on the other rows of its batch"));
        }
    }
    Ok(())
}

fn same(a: &Tensor, b: &Tensor) -> bool {
    if a.shape != b.shape || a.datatype != b.datatype {
        return false;
    }
    let (Some(left), Some(right)) = (sample::numbers(a), sample::numbers(b)) else { return a.data == b.data };
    let tolerance = if matches!(a.datatype, Datatype::Fp16 | Datatype::Bf16) { HALF_TOLERANCE } else { TOLERANCE };
    left.iter().zip(&right).all(|(&x, &y)| {
        (x.is_nan() && y.is_nan()) || x == y || (x - y).abs() <= tolerance * x.abs().max(y.abs()).max(0.1)
    })
}
