//! `ServingRuntime` and `ClusterServingRuntime` of KServe and ModelMesh as files of a runtime. Their fields, and where each goes, are a
//! dialect ([`berth_spec::dialect::kserve::serving_runtime`]).
//!
//! A file has no image to run: with `builtInAdapter` the model server of this machine is started, with `grpcEndpoint` the adapter is
//! one that runs already, and a server of one model is started by the command of its container.

mod single;

use std::collections::BTreeMap;

pub(super) use berth_spec::dialect::kserve::serving_runtime::KINDS;
use berth_spec::{
    FormatSupport,
    dialect::kserve::serving_runtime::{BuiltInAdapter, Container, ServingRuntime, SupportedFormat},
};

use super::{ApiVersion, Kind, Metadata, RawFormat, RawProtocol, RawRuntime, RawSpec, values};

/// Settings of MLServer that give it ports of its own, and nothing beside models.
const MLSERVER: [(&str, &str); 5] = [
    ("MLSERVER_HOST", "127.0.0.1"),
    ("MLSERVER_GRPC_PORT", "{port}"),
    ("MLSERVER_HTTP_PORT", "{port.http}"),
    ("MLSERVER_METRICS_PORT", "{port.metrics}"),
    ("MLSERVER_PARALLEL_WORKERS", "0"),
];

/// The command line of Triton for the same.
const TRITON: [&str; 6] = [
    "tritonserver",
    "--model-repository={repository}",
    "--model-control-mode=explicit",
    "--grpc-port={port}",
    "--http-port={port.http}",
    "--metrics-port={port.metrics}",
];

/// The command line of OpenVINO Model Server: it reads its list when it is told to, and by itself never.
const OPENVINO: [&str; 6] = [
    "ovms",
    "--port={port}",
    "--rest_port={port.http}",
    "--config_path={repository}/model_config_list.json",
    "--file_system_poll_wait_seconds=0",
    "--log_level=INFO",
];

/// The `Runtime` that the object is on this machine.
///
/// # Errors
/// The field that keeps it from being a runtime here, with the remedy.
pub(super) fn convert(ServingRuntime { metadata, spec }: ServingRuntime) -> Result<RawRuntime, String> {
    if spec.disabled {
        return Err("spec.disabled is true: leave the file out, or remove the field".to_owned());
    }
    let mut raw = RawSpec { formats: formats(&spec.supported_model_formats), ..RawSpec::default() };
    match (&spec.built_in_adapter, &spec.grpc_endpoint) {
        _ if !spec.multi_model => single::fill(&spec.containers, &mut raw).map_err(|why| {
            format!("spec.multiModel is not true: a process of its own is started with each model, and {why}")
        })?,
        (Some(adapter), _) => started(adapter, &spec.containers, &mut raw)?,
        (None, Some(endpoint)) => {
            raw.address = Some(address("grpcEndpoint", endpoint)?);
            let data = spec.grpc_data_endpoint.as_deref();
            raw.inference_address = data.map(|data| address("grpcDataEndpoint", data)).transpose()?;
        }
        (None, None) => {
            return Err(
                "spec.grpcEndpoint and spec.builtInAdapter are missing: one of them says how models are loaded"
                    .to_owned(),
            );
        }
    }
    let metadata = Metadata { name: metadata.name, labels: BTreeMap::new() };
    Ok(RawRuntime { _api_version: ApiVersion::V1, _kind: Kind::Runtime, metadata, spec: raw })
}

/// A model server of this machine, in place of the image.
fn started(adapter: &BuiltInAdapter, containers: &[Container], raw: &mut RawSpec) -> Result<(), String> {
    let server = adapter.server_type.as_str();
    match server {
        "mlserver" => {
            raw.command = ["mlserver", "start", "{repository}"].map(str::to_owned).into();
            raw.environment = MLSERVER.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        }
        "triton" => raw.command = TRITON.map(str::to_owned).into(),
        "ovms" => raw.command = OPENVINO.map(str::to_owned).into(),
        other => return Err(format!("spec.builtInAdapter.serverType is {other:?}: use mlserver, triton or ovms")),
    }
    raw.protocol = RawProtocol::V2;
    raw.layout = Some(if server == "ovms" { "openvino" } else { server }.to_owned());
    let of = containers.iter().find(|container| container.name == server).or(containers.first());
    let limit = of.and_then(|container| container.resources.limits.get("memory"));
    let limit = limit.ok_or("spec.containers[0].resources.limits.memory is missing: it is what the server may hold")?;
    let limit = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
    let bytes = values::size(&limit).map_err(|error| format!("spec.containers[0].resources.limits.memory: {error}"))?;
    let left = bytes.0.checked_sub(adapter.mem_buffer_bytes).filter(|left| *left > 0);
    let left = left
        .ok_or("spec.builtInAdapter.memBufferBytes is as large as the limit of memory: nothing is left for models")?;
    raw.memory = Some(format!("{left}B"));
    Ok(())
}

/// `port:8085` or `unix:/path`.
fn address(field: &str, endpoint: &str) -> Result<String, String> {
    match endpoint.split_once(':') {
        Some(("port", port)) => Ok(port.trim().to_owned()),
        Some(("unix", path)) => Ok(format!("unix:{}", path.trim_start_matches("//"))),
        _ => Err(format!("spec.{field} is {endpoint:?}: write port:NUMBER or unix:/PATH")),
    }
}

/// Formats with their versions; one without a version takes all.
fn formats(listed: &[SupportedFormat]) -> Vec<RawFormat> {
    let mut found: BTreeMap<&str, Option<Vec<String>>> = BTreeMap::new();
    for SupportedFormat { name, version } in listed {
        match (found.entry(name).or_insert_with(|| Some(Vec::new())), version) {
            (all, None) => *all = None,
            (Some(versions), Some(version)) => versions.push(version.clone()),
            (None, Some(_)) => {}
        }
    }
    let support = |(name, versions): (&str, Option<Vec<String>>)| {
        RawFormat::Versions(FormatSupport { name: name.to_owned(), versions: versions.unwrap_or_default() })
    };
    found.into_iter().map(support).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_spec::{
        ByteSize,
        dialect::{Mapping, kserve::serving_runtime::DIALECT},
    };
    use berth_worker::runtime::spi::Protocol;
    use proptest::{collection::vec, option, prelude::*, sample::select};
    use serde_json::{Value, json};

    use super::super::{RawSpec, of_kserve, parse, raw};

    const MLSERVER: &str = "
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mlserver-1.x, labels: {a: b}}
spec:
  supportedModelFormats:
  - {name: sklearn, version: '0', autoSelect: true}
  - {name: sklearn, version: '1'}
  - {name: xgboost}
  protocolVersions: [grpc-v2]
  multiModel: true
  grpcEndpoint: 'port:8085'
  grpcDataEndpoint: 'port:8001'
  containers:
  - {name: mlserver, image: seldonio/mlserver, resources: {requests: {memory: 1Gi}, limits: {memory: 1Gi}}}
  builtInAdapter: {serverType: mlserver, runtimeManagementPort: 8001, memBufferBytes: 134217728}
";

    #[test]
    fn a_built_in_adapter_starts_the_server_of_this_machine() {
        let settings = parse(MLSERVER, Path::new("/data")).expect("a runtime");
        assert_eq!((settings.name.as_str(), settings.memory), ("mlserver-1.x", Some(ByteSize::mib(896))));
        let formats: Vec<String> = settings.formats.iter().map(ToString::to_string).collect();
        assert_eq!(formats, ["sklearn:0,1", "xgboost"]);
        assert_eq!(settings.program.expect("a program").command[0], "mlserver");
        let triton = MLSERVER.replace("serverType: mlserver", "serverType: triton");
        let settings = parse(&triton, Path::new("/data")).expect("a runtime");
        assert!(matches!(settings.protocol, Protocol::V2(_)));
        assert!(settings.program.expect("a program").command.iter().any(|word| word.contains("explicit")));
        let settings = parse(&MLSERVER.replace("serverType: mlserver", "serverType: ovms"), Path::new("/data"))
            .expect("a runtime");
        let command = settings.program.expect("a program").command;
        let rest = settings.rest.expect("an address for its list").to_string();
        assert!(command.contains(&format!("--rest_port={rest}")), "{command:?} {rest}");
    }

    #[test]
    fn an_adapter_of_its_own_is_where_it_listens() {
        let own = MLSERVER.replace("  builtInAdapter: ", "  ignored: ").replace("'port:8085'", "'unix:///tmp/a.sock'");
        let settings = parse(&own, Path::new("/data")).expect("a runtime");
        assert_eq!(settings.address.to_string(), "unix:/tmp/a.sock");
        assert_eq!(settings.inference.map(|address| address.to_string()).as_deref(), Some("8001"));
        assert!(settings.program.is_none());
    }

    #[test]
    fn it_is_printed_as_the_runtime_that_a_worker_reads() {
        let object: Value = serde_saphyr::from_str(MLSERVER).expect("YAML");
        let runtime = of_kserve(&object).expect("a runtime");
        assert_eq!((&runtime["apiVersion"], &runtime["kind"]), (&"berth.dev/v1".into(), &"Runtime".into()));
        assert_eq!(runtime["spec"]["environment"]["MLSERVER_GRPC_PORT"], "{port}");
        assert!(runtime["spec"].get("address").is_none() && runtime["spec"].get("maxModels").is_none(), "{runtime}");
        let text = runtime.to_string();
        let [printed, own] = [text.as_str(), MLSERVER].map(|text| parse(text, Path::new("/data")).expect("one"));
        assert_eq!((printed.name, printed.memory, printed.protocol), (own.name, own.memory, own.protocol));
        let formats =
            |settings: &[berth_spec::FormatSupport]| settings.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(formats(&printed.formats), formats(&own.formats));
        let single = json!({"kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": {}});
        let refused = of_kserve(&single);
        assert!(refused.is_err_and(|failure| failure.to_string().contains("runtime r: spec.multiModel")));
    }

    prop_compose! {
        fn serving_runtime()(
            name in "r[a-z0-9._-]{0,20}",
            kind in select(vec!["ServingRuntime", "ClusterServingRuntime"]),
            formats in vec(("[a-z][a-z0-9_-]{0,8}", option::of("[0-9]{1,2}(\\.[0-9]{1,2}){0,2}")), 1..5),
            server in option::of(select(vec!["mlserver", "triton", "ovms"])),
            limit in select(vec![json!("1Gi"), json!("2048Mi"), json!(1 << 30)]),
            buffer in option::of(0_u32..1 << 29),
            endpoint in select(vec!["port:8085", "unix:///tmp/adapter.sock"]),
            data in option::of(select(vec!["port:8001", "unix:/tmp/data.sock"])),
        ) -> Value {
            let formats = formats.into_iter().map(|(name, version)| json!({"name": name, "version": version}));
            let adapter = server.map(|server| json!({"serverType": server, "memBufferBytes": buffer.unwrap_or_default()}));
            json!({
                "apiVersion": "serving.kserve.io/v1alpha1", "kind": kind, "metadata": {"name": name},
                "spec": {
                    "supportedModelFormats": formats.collect::<Vec<_>>(),
                    "multiModel": true, "disabled": false,
                    "grpcEndpoint": endpoint, "grpcDataEndpoint": data, "builtInAdapter": adapter,
                    "containers": [{"name": "server", "resources": {"limits": {"cpu": 1, "memory": limit}}}],
                },
            })
        }
    }

    proptest! {
        #[test]
        fn a_worker_reads_what_a_serving_runtime_becomes(object in serving_runtime()) {
            let printed = of_kserve(&object).expect("a runtime");
            let runtime = raw(&serde_saphyr::to_string(&printed).expect("YAML")).expect("the file that is printed");
            prop_assert_eq!(&serde_json::to_value(&runtime).expect("JSON"), &printed);
            let file = serde_saphyr::to_string(&object).expect("YAML");
            prop_assert_eq!(raw(&file), Ok(runtime), "a worker makes the same of the object's own file");
        }
    }

    #[test]
    fn its_table_leads_to_fields_of_a_runtime() {
        let text = serde_json::from_str::<RawSpec>(r#"{"unknown": 1}"#).expect_err("no such field").to_string();
        assert!(text.contains("`formats`"), "it lists the fields: {text}");
        for field in DIALECT.fields {
            let Mapping::To(paths) = field.mapping else { continue };
            for path in paths.iter().filter_map(|path| path.strip_prefix("spec.")) {
                assert!(text.contains(&format!("`{path}`")), "{}: a Runtime has no spec.{path}", field.path);
            }
        }
    }

    #[test]
    fn what_cannot_be_a_runtime_is_told() {
        for (from, to, says) in [
            ("multiModel: true", "multiModel: false", "spec.multiModel"),
            ("multiModel: true", "multiModel: true\n  disabled: true", "spec.disabled"),
            ("serverType: mlserver", "serverType: torchserve", "use mlserver, triton or ovms"),
            ("limits: {memory: 1Gi}", "limits: {}", "limits.memory is missing"),
            ("134217728", "1073741824", "memBufferBytes"),
            ("builtInAdapter", "x", ""),
        ] {
            let told = parse(&MLSERVER.replace(from, to), Path::new("/data"));
            assert!(told.is_ok() == says.is_empty(), "{to}");
            assert!(told.is_ok() || told.is_err_and(|error| error.contains(says)), "{to}");
        }
        let nowhere = MLSERVER.replace("builtInAdapter", "x").replace("'port:8085'", "8085");
        assert!(parse(&nowhere, Path::new("/data")).is_err_and(|error| error.contains("write port:NUMBER")));
    }
}
