//! Descriptions of servers and models, as JSON and as messages.

use std::time::Duration;

use berth_mesh::{
    local::{Batching, Statistics, Sum},
    oip::describe::{
        IndexEntry, ModelConfig, ModelMetadata, ModelStatistics, ModelStats, RepositoryParameters, ServerMetadata,
        State, index_ready_only,
    },
};
use berth_spec::{Datatype, Signature};
use berth_wire::oip;
use serde_json::{json, to_value};

use super::spec;

fn iris() -> Signature {
    Signature {
        inputs: vec![spec("x", Datatype::Fp32, &[-1, 4])],
        outputs: vec![spec("label", Datatype::Int64, &[-1]), spec("text", Datatype::Bytes, &[-1, 1])],
        ..Signature::default()
    }
}

#[test]
fn metadata() {
    let server = ServerMetadata { name: "berth", version: "1", extensions: &["binary_tensor_data"] };
    assert_eq!(to_value(server).unwrap(), json!({"name":"berth","version":"1","extensions":["binary_tensor_data"]}));
    assert_eq!(server.to_proto().extensions, ["binary_tensor_data"]);
    let signature = iris();
    let model = ModelMetadata::new("iris", vec!["1", "2"], "onnx_onnxv1", &signature);
    assert_eq!(
        to_value(&model).unwrap(),
        json!({"name":"iris","versions":["1","2"],"platform":"onnx_onnxv1",
            "inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}],
            "outputs":[{"name":"label","datatype":"INT64","shape":[-1]},{"name":"text","datatype":"BYTES","shape":[-1,1]}]})
    );
    let message = model.to_proto();
    assert_eq!((message.versions.len(), message.inputs.len(), message.outputs.len()), (2, 1, 2));
    assert_eq!(message.inputs[0].shape, [-1, 4]);
}

fn batching(max_rows: u32, micros: u64) -> Batching {
    Batching { max_rows, max_delay: Duration::from_micros(micros) }
}

#[test]
fn a_model_that_batches_leaves_the_batch_dimension_out() {
    let signature = iris();
    let config = ModelConfig::new("iris", "onnx_onnxv1", &signature, batching(32, 500));
    assert_eq!(
        to_value(&config).unwrap(),
        json!({"name":"iris","platform":"onnx_onnxv1","backend":"onnx","max_batch_size":32,
            "input":[{"name":"x","data_type":"TYPE_FP32","dims":[4]}],
            "output":[{"name":"label","data_type":"TYPE_INT64","dims":[]},{"name":"text","data_type":"TYPE_STRING","dims":[1]}],
            "instance_group":[{"name":"iris","kind":"KIND_CPU","count":1}],
            "dynamic_batching":{"max_queue_delay_microseconds":500,"priority_levels":0}})
    );
    let message = config.to_proto().config.unwrap();
    assert_eq!(message.input[0].data_type(), oip::DataType::TypeFp32);
    assert!(matches!(
        message.scheduling_choice,
        Some(oip::model_config::SchedulingChoice::DynamicBatching(batching)) if batching.max_queue_delay_microseconds == 500
    ));
}

#[test]
fn a_model_that_does_not_batch_is_described_whole() {
    let mut signature = iris();
    for rows in [1, 32] {
        let config = to_value(ModelConfig::new("iris", "onnx_onnxv1", &signature, batching(rows, 0))).unwrap();
        let batched = rows > 1;
        assert_eq!(config["max_batch_size"] == 32, batched);
        assert_eq!(config.get("dynamic_batching").is_some(), batched);
    }
    signature.outputs[0].shape = vec![7];
    let config = to_value(ModelConfig::new("iris", "onnx_onnxv1", &signature, batching(32, 0))).unwrap();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(0), &json!([-1, 4])));
}

#[test]
fn statistics() {
    let sum = |count, ns| Sum { count, ns };
    let statistics = Statistics {
        last_inference_ms: 5,
        inference_count: 12,
        execution_count: 3,
        success: sum(4, 400),
        batches: vec![(4, sum(3, 1), sum(3, 2), sum(3, 3))],
        memory: 1 << 20,
        ..Statistics::default()
    };
    let stats = ModelStatistics { model_stats: vec![ModelStats::new("iris", "7", &statistics)] };
    let none = json!({"count":0,"ns":0});
    assert_eq!(
        to_value(&stats).unwrap(),
        json!({"model_stats":[{"name":"iris","version":"7","last_inference":5,"inference_count":12,"execution_count":3,
            "inference_stats":{"success":{"count":4,"ns":400},"fail":none,"queue":none,"compute_input":none,
                "compute_infer":none,"compute_output":none,"cache_hit":none,"cache_miss":none},
            "response_stats":{},
            "batch_stats":[{"batch_size":4,"compute_input":{"count":3,"ns":1},"compute_infer":{"count":3,"ns":2},
                "compute_output":{"count":3,"ns":3}}],
            "memory_usage":[{"type":"CPU","id":0,"byte_size":1_048_576}]}]})
    );
    let message = stats.to_proto().model_stats.remove(0);
    assert_eq!((message.inference_count, message.execution_count, message.batch_stats[0].batch_size), (12, 3, 4));
    assert_eq!(message.inference_stats.unwrap().success.unwrap().ns, 400);
    assert_eq!(message.memory_usage[0].byte_size, 1 << 20);
}

#[test]
fn the_index() {
    let ready = IndexEntry { name: "iris", version: "7", state: State::Ready, reason: "" };
    let cold = IndexEntry { name: "cold", version: "", state: State::Unavailable, reason: "paged out" };
    assert_eq!(
        serde_json::to_value([ready, cold]).unwrap(),
        json!([{"name":"iris","version":"7","state":"READY","reason":""},
            {"name":"cold","version":"","state":"UNAVAILABLE","reason":"paged out"}])
    );
    assert_eq!(cold.to_proto().state, "UNAVAILABLE");
}

#[test]
fn bodies_of_the_repository_extension() {
    for (body, ready) in [("", Some(false)), (" ", Some(false)), ("{}", Some(false)), (r#"{"ready":true}"#, Some(true))]
    {
        assert_eq!(index_ready_only(body.as_bytes()).ok(), ready, "{body}");
    }
    assert!(index_ready_only(b"[1]").is_err() && index_ready_only(br#"{"ready":1}"#).is_err());
    let plain = RepositoryParameters::default();
    for (body, parameters) in [
        ("", plain),
        ("{}", plain),
        (r#"{"parameters":null}"#, plain),
        (r#"{"parameters":{"config":"{}"}}"#, RepositoryParameters { overrides: true, ..plain }),
        (r#"{"parameters":{"file:1/model.onnx":"AAAA"}}"#, RepositoryParameters { overrides: true, ..plain }),
        (r#"{"parameters":{"unload_dependents":false}}"#, plain),
        (r#"{"parameters":{"unload_dependents":true}}"#, RepositoryParameters { unload_dependents: true, ..plain }),
    ] {
        assert_eq!(RepositoryParameters::from_json(body.as_bytes()).ok(), Some(parameters), "{body}");
    }
    assert!(RepositoryParameters::from_json(b"{").is_err());
    let choice = oip::model_repository_parameter::ParameterChoice::StringParam("{}".to_owned());
    let config = ("config".to_owned(), oip::ModelRepositoryParameter { parameter_choice: Some(choice) });
    assert!(RepositoryParameters::from_proto([(&config.0, &config.1)]).overrides);
}
