//! Tests of the worker's parts from outside.

mod agent;
mod artifacts;
mod batching;
mod driver;
mod onnx;
mod prepare;
mod python;
mod runtimes;
mod spi;

use berth_spec::PinnedCard;

/// A card whose code is `code_commit` of `repository`.
fn card(repository: &str, code_commit: &str, schema_version: &str) -> PinnedCard {
    let card = serde_json::json!({
        "card": {
            "schemaVersion": schema_version,
            "metadata": {"name": "m", "version": "1.0.0", "description": "a model", "owner": "a@example.org"},
            "runtime": {"framework": "custom", "framework_version": "1", "python_version": "3.11", "dependencies": []},
            "artifacts": {"storage_type": "http", "model_path": "http://host/m"},
            "code": {"repository": repository, "path": "src/", "ref": "v1.0.0"},
            "preprocessing": {"module": "src.pre", "function": "f"},
            "postprocessing": {"module": "src.post", "function": "f"},
            "interface": {"input_schema": {}, "output_schema": {}},
        },
        "repository": repository, "ref": "v1.0.0", "commit": code_commit, "codeCommit": code_commit,
    });
    serde_json::from_value(card).expect("a card")
}
