//! Names and manifests of models: attributes in, a deployment's manifest out.

use berth_spec::{
    DeploymentName, ModelFormat, Namespace, OpaqueModel,
    manifest::{ManifestAlias, ManifestDeployment, ParseContext},
};
use berth_wire::mmesh::ModelInfo;
use serde_json::{Value, json};
use tonic::{Status, metadata::MetadataMap};

/// The label of a model that goes with the last virtual model that leads to it.
pub(crate) const AUTO_DELETE: &str = "modelmesh.berth.dev/auto-delete";
/// The annotation with the owner of a virtual model.
pub(crate) const OWNER: &str = "modelmesh.berth.dev/owner";

/// The format of models whose type names none.
const OPAQUE: &str = "modelmesh";

/// The most copies of a model: rate and concurrency decide how many there are, and no fleet has more workers.
const COPIES: u32 = 100;

/// The namespace that a call is about: `berth-namespace`, else `default`.
pub(crate) fn namespace(metadata: &MetadataMap) -> Result<Namespace, Status> {
    let Some(text) = metadata.get("berth-namespace") else { return Ok(Namespace::DEFAULT) };
    let text = text.to_str().map_err(|_| Status::invalid_argument("berth-namespace is not ASCII"))?;
    Namespace::new(text).map_err(|error| Status::invalid_argument(format!("berth-namespace is {text:?}: {error}")))
}

/// The name of a model or virtual model.
pub(crate) fn name(namespace: &Namespace, field: &str, id: &str) -> Result<DeploymentName, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is empty")));
    }
    DeploymentName::within(namespace, id)
        .map_err(|error| Status::invalid_argument(format!("{field} is {id:?}: {error}")))
}

/// Type, path and key of a model as one location, which only its runtime reads.
pub(crate) fn location(info: &ModelInfo) -> OpaqueModel {
    OpaqueModel { kind: info.r#type.clone(), path: info.path.clone(), key: info.key.clone() }
}

/// The attributes of a declared model; `None`: it is none of this API's.
pub(crate) fn attributes(uri: &str) -> Option<OpaqueModel> {
    uri.parse().ok()
}

/// The format of a type: `mt:NAME:VERSION` as ModelMesh Serving writes it, or a type that is a format itself. Others have
/// a format of their own.
fn format(kind: &str) -> ModelFormat {
    let name = kind.strip_prefix("mt:").map_or(kind, |rest| rest.split('|').next().unwrap_or(rest));
    let lower = name.to_lowercase();
    let format = if kind.starts_with("rt:") { OPAQUE.parse() } else { lower.parse() };
    let python = |format: &ModelFormat| format.is_python();
    // A Python model needs a card, and these have none.
    format.ok().filter(|format| !python(format)).unwrap_or_else(|| OPAQUE.parse().unwrap_or(ModelFormat::ONNX))
}

/// The type as a model's type in a manifest. One with characters that such a type does not have gets others for them, and a
/// number that tells it from similar ones.
#[must_use]
pub fn type_name(kind: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if kind.len() <= LONGEST_TYPE && kind.starts_with(|c: char| c.is_ascii_alphanumeric()) && kind.chars().all(plain) {
        return kind.to_owned();
    }
    // FNV-1a: the same number in each version, and short.
    let number = kind.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let words = kind.chars().map(|c| if plain(c) { c } else { '-' }).take(LONGEST_TYPE - 10);
    let words: String = words.skip_while(|c| !c.is_ascii_alphanumeric()).collect();
    format!("{}-{number:08x}", if words.is_empty() { "type" } else { words.as_str() })
}

/// The most characters of a model's type: as many as a format's name may have in a manifest.
const LONGEST_TYPE: usize = 63;

/// The manifest of a model: opaque to Berth, on demand, with up to [`COPIES`] replicas. INVALID_ARGUMENT if it breaks a rule.
pub(crate) fn model(
    name: &DeploymentName,
    attributes: &OpaqueModel,
    auto_delete: bool,
) -> Result<ManifestDeployment, Status> {
    let mut metadata = json!({ "name": name.name(), "namespace": name.namespace() });
    if auto_delete {
        metadata["labels"] = json!({ AUTO_DELETE: "true" });
    }
    let document = json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": metadata,
        "spec": {
            "model": {
                "format": format(&attributes.kind).as_str(),
                "uri": attributes.to_string(),
                "type": type_name(&attributes.kind),
            },
            "replicas": { "min": 0, "max": COPIES },
        },
    });
    read(&document)
}

/// Checks the manifest of one deployment. INVALID_ARGUMENT with every mistake in it.
pub(crate) fn read(document: &Value) -> Result<ManifestDeployment, Status> {
    let context = ParseContext { file: "the request".to_owned(), ..ParseContext::default() };
    let read = berth_spec::manifest::parse(&document.to_string(), &context);
    let mut manifests = read.map_err(|errors| Status::invalid_argument(joined(&errors)))?;
    manifests.pop().ok_or_else(|| Status::internal("the manifest of the model is empty"))
}

/// The manifest of a virtual model: what it leads to, and what it will lead to.
pub(crate) fn vmodel(
    name: &DeploymentName,
    active: &DeploymentName,
    target: &DeploymentName,
    owner: &str,
) -> Result<ManifestAlias, Status> {
    let mut targets = vec![json!({ "deployment": active.name(), "weight": 1 })];
    if target != active {
        targets.push(json!({ "deployment": target.name(), "weight": 0 }));
    }
    let mut metadata = json!({ "name": name.name(), "namespace": name.namespace() });
    if !owner.is_empty() {
        metadata["annotations"] = json!({ OWNER: owner });
    }
    let document = json!({
        "apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": metadata, "spec": { "targets": targets },
    });
    let context = ParseContext { file: "the request".to_owned(), ..ParseContext::default() };
    ManifestAlias::from_value(&document, &context).map_err(|errors| Status::invalid_argument(joined(&errors)))
}

/// An annotation in a stored manifest; `None` if it is not there.
pub(crate) fn annotation<'a>(manifest: &'a Value, key: &str) -> Option<&'a str> {
    manifest.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

fn joined(errors: &[berth_spec::manifest::ManifestError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutator;

    /// Lines stand for the fields of requests (id, type, path, key): a short fuzz run, the same each time (`cargo xtask fuzz` for a long
    /// one). What is taken says what it was registered with; what is refused is the sender's fault.
    #[test]
    fn fuzz_mmesh() {
        let refused = |status: &Status| assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
        mutator::run("mmesh", |data| {
            let Ok(text) = str::from_utf8(data) else { return };
            let mut lines = text.split('\n');
            let mut field = || lines.next().unwrap_or_default().to_owned();
            let (id, info) = (field(), ModelInfo { r#type: field(), path: field(), key: field() });
            let name = match name(&Namespace::DEFAULT, "modelId", &id) {
                Ok(name) => name,
                Err(status) => return refused(&status),
            };
            match model(&name, &location(&info), true) {
                Ok(manifest) => {
                    assert_eq!(manifest.name, name);
                    assert_eq!(attributes(&manifest.spec.model.uri), Some(location(&info)));
                }
                Err(status) => refused(&status),
            }
            match vmodel(&name, &name, &name, &info.key) {
                Ok(alias) => assert_eq!(alias.targets, [(name, 1)]),
                Err(status) => refused(&status),
            }
        });
    }

    #[test]
    fn types_name_their_format_as_far_as_they_do() {
        for (kind, expected) in [
            ("mt:sklearn:0", "sklearn:0"),
            ("mt:onnx|pv:v2", "onnx"),
            ("mt:tensorflow:1.15|pv:v2", "tensorflow:1.15"),
            ("rt:my-runtime", "modelmesh"),
            ("ExampleType", "exampletype"),
            ("a type of its own", "modelmesh"),
            ("python", "modelmesh"),
        ] {
            assert_eq!(format(kind).as_str(), expected, "{kind}");
        }
    }

    #[test]
    fn types_are_words() {
        assert_eq!(type_name("my-type-1"), "my-type-1");
        let (one, other) = (type_name("mt:sklearn:0|pv:v2"), type_name("mt:sklearn:0|pv-v2"));
        assert!(one.starts_with("mt-sklearn-0-pv-v2-") && one != other, "{one} {other}");
        for odd in ["::", "ü", &"x".repeat(200)] {
            let name = type_name(odd);
            assert!(name.len() <= LONGEST_TYPE && name == type_name(&name), "{name}");
        }
    }

    #[test]
    fn a_model_says_what_it_was_registered_with() {
        let name = DeploymentName::new("team/My Model/1").expect("a name");
        let info = ModelInfo { r#type: "mt:x".into(), path: "a b?c".into(), key: "{\"k\":1}".into() };
        let manifest = model(&name, &location(&info), true).expect("a manifest");
        assert_eq!(manifest.name, name);
        assert_eq!(attributes(&manifest.spec.model.uri), Some(location(&info)));
        assert_eq!(manifest.labels.get(AUTO_DELETE).map(String::as_str), Some("true"));
        assert_eq!(manifest.spec.replicas.min, 0);
    }

    #[test]
    fn a_virtual_model_shows_where_it_goes() {
        let name = |text: &str| DeploymentName::new(text).expect("a name");
        let settled = vmodel(&name("v"), &name("a"), &name("a"), "").expect("an alias");
        assert_eq!(settled.targets, [(name("a"), 1)]);
        let going = vmodel(&name("v"), &name("a"), &name("b"), "me").expect("an alias");
        assert_eq!(going.targets, [(name("a"), 1), (name("b"), 0)]);
        assert_eq!(annotation(&going.raw, OWNER), Some("me"));
    }
}
