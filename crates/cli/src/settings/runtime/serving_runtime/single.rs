//! A server that is started with its model, as KServe has it: by the command of its container, with the model's name in place of
//! `{{.Name}}`, its artifact at `/mnt/models`, and ports that no other process has.

use berth_spec::dialect::kserve::serving_runtime::{Container, Variable};

use super::super::{RawProtocol, RawSpec, places::ARTIFACT};

/// The container that runs the server.
const CONTAINER: &str = "kserve-container";

/// Texts of the container, and the words of a `Runtime` for them.
const WORDS: [(&str, &str); 3] =
    [("{{.Name}}", "{name}"), ("{{ .Name }}", "{name}"), ("/mnt/models", "{artifact.folder}")];

/// The word for the port that is called.
const CALLED: &str = "{port}";

/// Makes it a runtime with one model per process.
///
/// # Errors
/// The part that the container lacks, as the end of a sentence.
pub(super) fn fill(containers: &[Container], raw: &mut RawSpec) -> Result<(), String> {
    let of = containers.iter().find(|container| container.name == CONTAINER).or(containers.first());
    let of = of.ok_or("spec.containers is empty: its command says how")?;
    let words: Vec<&str> = of.command.iter().chain(&of.args).map(String::as_str).collect();
    if words.first().is_none_or(|program| program.starts_with('-')) {
        return Err(
            "spec.containers[0].command is missing: a file has no image, so the program has to be there, as in \
                    [python, -m, sklearnserver]"
                .to_owned(),
        );
    }
    let mut flag = "";
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((flag, word));
        raw.command.push(match port(name, value) {
            Some(port) if word.contains('=') => format!("{name}={port}"),
            Some(port) => port,
            None => filled(word)?,
        });
        flag = word;
    }
    for Variable { name, value } in &of.env {
        let value = value.as_deref().ok_or_else(|| {
            format!("the variable {name} has no value: a file cannot look it up, so it has to be written there")
        })?;
        let value = port(name, value).map_or_else(|| filled(value), Ok)?;
        raw.environment.insert(name.clone(), value);
    }
    let said = |word: &str| raw.command.iter().chain(raw.environment.values()).any(|text| text.contains(word));
    if !said(ARTIFACT) {
        return Err("the command does not name /mnt/models, where the model is".to_owned());
    }
    if !said(CALLED) {
        return Err(
            "the command names no port for gRPC, by which it is called: --grpc_port=8081 for KServe's servers, \
                    --grpc-port=8001 for Triton, or the variable MLSERVER_GRPC_PORT"
                .to_owned(),
        );
    }
    (raw.protocol, raw.models_per_process) = (RawProtocol::V2, Some(1));
    Ok(())
}

/// The word for a port, of a flag or variable with this name and value; `None`: it is none.
fn port(name: &str, value: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    if !name.ends_with("port") || value.parse::<u16>().is_err() {
        return None;
    }
    Some(if name.contains("grpc") { CALLED.to_owned() } else { format!("{{port.{value}}}") })
}

fn filled(text: &str) -> Result<String, String> {
    let filled = WORDS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    match filled.contains("{{") {
        true => Err(format!("{text:?} has a template: of those, {{{{.Name}}}} alone is known here")),
        false => Ok(filled),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_worker::runtime::spi::OneModel;

    use super::super::super::parse;

    const CUSTOM: &str = "
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: kserve-custom}
spec:
  supportedModelFormats: [{name: sklearn, version: '1', autoSelect: true}]
  protocolVersions: [v1, v2]
  multiModel: false
  containers:
  - name: kserve-container
    image: example.com/custom:1
    command: [python, -m, custom]
    args: ['--model_name={{.Name}}', --model_dir=/mnt/models, --http_port, '8080', --grpc_port=8081]
    env: [{name: METRICS_PORT, value: '9090'}, {name: LEVEL, value: '9090'}]
    resources: {limits: {memory: 2Gi}}
";

    #[test]
    fn a_command_gets_the_model_and_ports_of_its_own() {
        let settings = parse(CUSTOM, Path::new("/data")).expect("a runtime");
        assert_eq!(settings.memory, None, "the limit is that of one pod");
        let factory = settings.per_model.expect("settings of each process");
        let one = OneModel { process: "iris.0", name: "iris", artifact: Some((Path::new("/cache/4f2a"), "m.joblib")) };
        let made = factory.make(one).expect("a process");
        let program = made.program.expect("a program");
        assert_eq!(program.command[..3], ["python", "-m", "custom"]);
        assert_eq!(program.command[3..5], ["--model_name=iris", "--model_dir=/data/runtimes/kserve-custom/iris.0"]);
        assert_eq!(program.command[7], format!("--grpc_port={}", made.address));
        assert_ne!(program.command[6], "8080", "another model's process has a port, too");
        assert_ne!(program.environment["METRICS_PORT"], "9090");
        assert_eq!(program.environment["LEVEL"], "9090", "it is no port");
    }

    #[test]
    fn a_container_that_cannot_be_started_is_told() {
        for (from, to, says) in [
            ("    command: [python, -m, custom]\n", "", "command is missing"),
            ("--grpc_port=8081", "--workers=1", "no port for gRPC"),
            ("--model_dir=/mnt/models", "--model_dir=/models", "/mnt/models"),
            ("{{.Name}}", "{{.Labels.team}}", "template"),
            (", value: '9090'}]", "}]", "LEVEL has no value"),
            ("  containers:\n", "  others:\n", "spec.containers is empty"),
        ] {
            let error = parse(&CUSTOM.replace(from, to), Path::new("/data")).expect_err(to);
            assert!(error.contains("spec.multiModel") && error.contains(says), "{to}: {error}");
        }
    }
}
