//! Model servers that a worker uses beside its built-in runtimes: objects of kind `Runtime`, one file each.

use std::path::Path;

use berth_spec::{ByteSize, FormatSupport};
use berth_worker::runtime::spi::{self, Reserve, address::Address};
use serde::Deserialize;

use super::values;
use crate::failure::Failure;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRuntime {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: Kind,
    metadata: Metadata,
    spec: RawSpec,
}

#[derive(Debug, Deserialize)]
enum ApiVersion {
    #[serde(rename = "berth.dev/v1")]
    V1,
}

#[derive(Debug, Deserialize)]
enum Kind {
    Runtime,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSpec {
    #[serde(rename = "protocol", default)]
    _protocol: Protocol,
    address: String,
    inference_address: Option<String>,
    formats: Vec<RawFormat>,
    memory: Option<String>,
    max_models: Option<u32>,
    device_memory: Option<String>,
    start_timeout: Option<String>,
    unload_reserve: Option<String>,
}

/// The protocol by which a runtime is told what to hold.
#[derive(Debug, Default, Deserialize)]
enum Protocol {
    /// `mmesh.ModelRuntime`.
    #[default]
    #[serde(rename = "spi")]
    Spi,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawFormat {
    Name(String),
    Versions(FormatSupport),
}

/// Reads the file of one runtime.
pub(crate) fn read(path: &Path) -> Result<spi::Settings, Failure> {
    let text = fs_err::read_to_string(path).map_err(|error| Failure::Usage(format!("--runtime: {error}")))?;
    parse(&text).map_err(|reason| Failure::Usage(format!("--runtime {}: {reason}", path.display())))
}

fn parse(text: &str) -> Result<spi::Settings, String> {
    let raw: RawRuntime = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let name = raw.metadata.name;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(plain) {
        return Err(format!("metadata.name is {name:?}: use 1 to 63 lower-case letters, digits, '-', '_' and '.'"));
    }
    if ["onnx", "python"].contains(&name.as_str()) {
        return Err(format!("metadata.name is {name:?}, which is a built-in runtime: choose another name"));
    }
    let spec = raw.spec;
    let address = |field: &str, text: &str| text.parse::<Address>().map_err(|error| format!("spec.{field}: {error}"));
    let size = |field: &str, text: Option<&String>| -> Result<Option<ByteSize>, String> {
        text.map(|text| values::size(text).map_err(|error| format!("spec.{field} is {text:?}: {error}"))).transpose()
    };
    let start = spec.start_timeout.as_deref().map(values::duration).transpose();
    if spec.formats.is_empty() {
        return Err("spec.formats is empty: list what it takes, or \"*\" for everything".to_owned());
    }
    let reserve = size("unloadReserve", spec.unload_reserve.as_ref())?;
    Ok(spi::Settings {
        inference: spec.inference_address.as_deref().map(|text| address("inferenceAddress", text)).transpose()?,
        formats: spec.formats.into_iter().map(format).collect::<Result<_, _>>()?,
        memory: size("memory", spec.memory.as_ref())?,
        max_models: spec.max_models,
        device_memory: size("deviceMemory", spec.device_memory.as_ref())?,
        start: start.map_err(|error| format!("spec.startTimeout: {error}"))?.unwrap_or(spi::START),
        unload_reserve: reserve.map_or(Reserve::None, Reserve::Bytes),
        ..spi::Settings::new(name, address("address", &spec.address)?)
    })
}

fn format(raw: RawFormat) -> Result<FormatSupport, String> {
    let support = match raw {
        RawFormat::Name(text) => match text.split_once(':') {
            Some((name, version)) => FormatSupport { name: name.to_owned(), versions: vec![version.to_owned()] },
            None => FormatSupport { name: text, versions: Vec::new() },
        },
        RawFormat::Versions(support) => support,
    };
    if support.name != FormatSupport::ANY {
        let check = |version| berth_spec::ModelFormat::new(&support.name, version).map(drop);
        check(None).map_err(|error| format!("spec.formats: {error}"))?;
        for version in &support.versions {
            check(Some(version)).map_err(|error| format!("spec.formats: {error}"))?;
        }
    }
    Ok(support)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "
apiVersion: berth.dev/v1
kind: Runtime
metadata: {name: mlserver}
spec:
  protocol: spi
  address: unix:/run/adapter.sock
  inferenceAddress: 8001
  formats: [sklearn, 'xgboost:1', {name: lightgbm, versions: ['3', '4']}]
  memory: 4GiB
  maxModels: 100
  startTimeout: 1m
";

    #[test]
    fn a_file_declares_a_runtime() {
        let settings = parse(FULL).expect("a runtime");
        assert_eq!(settings.name, "mlserver");
        assert_eq!(settings.address.to_string(), "unix:/run/adapter.sock");
        assert_eq!(settings.inference.map(|address| address.to_string()).as_deref(), Some("8001"));
        let formats: Vec<String> = settings.formats.iter().map(ToString::to_string).collect();
        assert_eq!(formats, ["sklearn", "xgboost:1", "lightgbm:3,4"]);
        assert_eq!((settings.memory, settings.max_models), (Some(ByteSize::gib(4)), Some(100)));
        assert_eq!(settings.start, std::time::Duration::from_secs(60));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, problem) in [
            ("kind: Runtime", "kind: Model", "Model"),
            ("name: mlserver", "name: onnx", "built-in"),
            ("name: mlserver", "name: ML Server", "metadata.name"),
            ("unix:/run/adapter.sock", "adapter.sock", "spec.address"),
            ("formats: [sklearn,", "formats: [SKLearn,", "spec.formats"),
            ("memory: 4GiB", "memory: lots", "spec.memory"),
            ("maxModels", "maxModel", "maxModel"),
            ("startTimeout: 1m", "startTimeout: soon", "spec.startTimeout"),
        ] {
            let error = parse(&FULL.replace(from, to)).expect_err(to);
            assert!(error.contains(problem), "{to}: {error}");
        }
    }
}
