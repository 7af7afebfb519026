//! Batched equals unbatched, on real graphs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{Datatype, InferError, InferRequest, Serving, Tensor};
use berth_worker::runtime::{LoadedModel, Runtime};
use proptest::prelude::*;

use super::{engine, floats, numbers, request, tensor};

fn with_rows(name: &str, max_rows: u32, delay: Duration) -> Option<Arc<dyn LoadedModel>> {
    let mut request = request(name);
    let mut serving = Serving::clone(&request.serving);
    serving.batching.max_rows = max_rows;
    serving.batching.max_delay = delay;
    request.serving = Arc::new(serving);
    Some(engine()?.load(&request).expect(name).model)
}

fn run_all(model: &Arc<dyn LoadedModel>, requests: &[Vec<Tensor>]) -> Vec<Result<Vec<Tensor>, InferError>> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let deadline = Instant::now() + Duration::from_secs(120);
        let requests = requests.iter().map(|inputs| {
            let request = InferRequest { inputs: inputs.clone(), ..InferRequest::default() };
            model.infer(request, deadline)
        });
        futures::future::join_all(requests).await
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn perceptron(rows in proptest::collection::vec(proptest::collection::vec(-5.0_f32..5.0, 4..=20), 1..40), max_rows in 2_u32..40) {
        let Some(joined) = with_rows("mlp", max_rows, Duration::ZERO) else { return Ok(()) };
        let Some(alone) = with_rows("mlp", 1, Duration::ZERO) else { return Ok(()) };
        let requests: Vec<Vec<Tensor>> = rows.iter().map(|values| {
            let count = values.len() / 4;
            vec![floats("x", &[count as i64, 4], &values[..4 * count])]
        }).collect();
        for (joined, alone) in run_all(&joined, &requests).into_iter().zip(run_all(&alone, &requests)) {
            let (joined, alone) = (joined.expect("it runs"), alone.expect("it runs"));
            prop_assert_eq!(&joined[0], &alone[0]);
            prop_assert_eq!(&joined[1].shape, &alone[1].shape);
            for (a, b) in numbers(&joined[1]).into_iter().zip(numbers(&alone[1])) {
                prop_assert!((a - b).abs() < 1e-5, "{} {}", a, b);
            }
        }
    }

    #[test]
    fn texts(texts in proptest::collection::vec(proptest::collection::vec("[a-zé]{0,6}", 2..=8), 1..20)) {
        let Some(joined) = with_rows("strings", 16, Duration::ZERO) else { return Ok(()) };
        let requests: Vec<Vec<Tensor>> = texts.iter().map(|texts| {
            let rows = texts.len() / 2;
            let mut data = Vec::new();
            for text in &texts[..2 * rows] {
                data.extend(u32::try_from(text.len()).expect("short").to_le_bytes());
                data.extend(text.as_bytes());
            }
            vec![tensor("s", Datatype::Bytes, &[rows as i64, 2], data)]
        }).collect();
        for (answer, request) in run_all(&joined, &requests).into_iter().zip(&requests) {
            prop_assert_eq!(&answer.expect("it runs")[0].data, &request[0].data);
        }
    }

    /// One bad index fails its own request and no other.
    #[test]
    fn failures_stay_alone(indices in proptest::collection::vec(0_i64..5, 1..30)) {
        let Some(joined) = with_rows("lookup", 16, Duration::from_millis(2)) else { return Ok(()) };
        let requests: Vec<Vec<Tensor>> =
            indices.iter().map(|index| vec![tensor("i", Datatype::Int64, &[1], index.to_le_bytes().to_vec())]).collect();
        for (answer, &index) in run_all(&joined, &requests).into_iter().zip(&indices) {
            prop_assert_eq!(answer.is_ok(), index < 3, "{}", index);
        }
    }
}

#[test]
fn requests_that_are_there_together_run_together() {
    let Some(model) = with_rows("mlp", 64, Duration::from_millis(50)) else { return };
    let requests: Vec<Vec<Tensor>> = (0..64).map(|_| vec![floats("x", &[1, 4], &[1.0; 4])]).collect();
    assert!(run_all(&model, &requests).into_iter().all(|answer| answer.is_ok()));
    let statistics = model.statistics();
    assert_eq!((statistics.inference_count, statistics.success.count), (64, 64));
    assert!(statistics.execution_count < 8, "{} runs for 64 requests", statistics.execution_count);
}
