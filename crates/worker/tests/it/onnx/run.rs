//! Runs: answers, errors, statistics, unloading.

use std::time::{Duration, Instant};

use berth_spec::{InferError, InferRequest, inference::RequestedOutput};

use super::{engine, floats, infer, load, numbers, tensor};

#[test]
fn a_fixed_batch_is_run_as_it_is() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "fixed").expect("it loads");
    let outputs =
        infer(&loaded, vec![floats("x", &[2, 4], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0])]).expect("it runs");
    assert_eq!(outputs[0].shape, [2, 3]);
    assert_eq!(numbers(&outputs[0]), [-0.75, -0.5, -0.25, 0.0, 0.25, 0.5]);
    let error = infer(&loaded, vec![floats("x", &[1, 4], &[0.0; 4])]).expect_err("two rows are wanted");
    assert!(matches!(error, InferError::Invalid(_)), "{error}");
}

#[tokio::test]
async fn only_the_outputs_that_are_asked_for_in_that_order() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "mlp").expect("it loads");
    for wanted in [&["p", "label"][..], &["p"], &["label"]] {
        let outputs = wanted.iter().map(|name| RequestedOutput { name: (*name).to_owned(), classification: None });
        let inputs = vec![floats("x", &[1, 4], &[1.0, 2.0, 3.0, 4.0])];
        let request = InferRequest { inputs, outputs: outputs.collect(), ..InferRequest::default() };
        let answer = loaded.model.infer(request, Instant::now() + Duration::from_secs(120)).await.expect("it runs");
        let names: Vec<&str> = answer.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, wanted);
    }
}

#[test]
fn a_failure_of_the_model_is_the_models_and_leaves_it_whole() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "lookup").expect("it loads");
    let run =
        |index: i64| infer(&loaded, vec![tensor("i", berth_spec::Datatype::Int64, &[1], index.to_le_bytes().to_vec())]);
    let error = run(7).expect_err("there are three rows");
    assert!(matches!(&error, InferError::Model(message) if message.contains("out of data bounds")), "{error}");
    assert_eq!(numbers(&run(1).expect("it runs")[0]), [-0.25, 0.0]);
    let statistics = loaded.model.statistics();
    assert_eq!((statistics.success.count, statistics.fail.count, statistics.execution_count), (1, 1, 2));
    assert!(statistics.memory > 0 && statistics.last_inference_ms > 0);
}

#[test]
fn inputs_that_do_not_fit_together_are_the_callers_mistake() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "add").expect("it loads");
    let run = |x: usize, y: usize| {
        let input = |name, rows: usize| floats(name, &[rows as i64, 3], &vec![1.0; rows * 3]);
        infer(&loaded, vec![input("x", x), input("y", y)])
    };
    let error = run(2, 4).expect_err("the graph calls both n");
    assert!(matches!(&error, InferError::Invalid(message) if message.contains("calls both \"n\"")), "{error}");
    assert_eq!(numbers(&run(1, 2).expect("one row fits all")[0]), [2.0; 6]);
}

#[test]
fn a_model_that_is_dropped_frees_its_memory() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "mlp").expect("it loads");
    let weak = std::sync::Arc::downgrade(&loaded.model);
    infer(&loaded, vec![floats("x", &[1, 4], &[0.0; 4])]).expect("it runs");
    drop(loaded);
    assert!(weak.upgrade().is_none(), "nothing else holds it");
}
