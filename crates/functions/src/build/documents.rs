//! Documents beside an artifact: the bill of its materials, how it came to be, and the lock of its packages.
//!
//! Functions of several namespaces may have one artifact, for the same files give the same bytes. So its provenance on disk names no place of
//! code; whoever reads it for a function gets the place of that function's own code.
//!
//! Sources: CycloneDX 1.6 (ECMA-424), the in-toto Statement v1, and SLSA Provenance v1 (slsa.dev/spec/v1.0/provenance).

use berth_spec::Time;
use serde_json::{Value, json};

use super::{lock::Lock, packages::Package};
use crate::{
    deployment::{Bundler, CodeUri, FunctionSpec, Language, digest},
    status::ArtifactStatus,
};

/// Name of the way in which artifacts are built, in provenance.
const BUILD_TYPE: &str = "https://berth.dev/functions/build/v1";

/// Names of the inputs of a build that come from the place of its code.
const CODE: &str = "code";
const ARCHIVE: &str = "archive";
const COMMIT: &str = "commit";

/// A document beside an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Document {
    /// The packages in it, as CycloneDX.
    Sbom,
    /// Its inputs and its build, as SLSA provenance.
    Provenance,
    /// The lock that its build came to, where the code has none: `package-lock.json` or `requirements.lock`.
    Lock,
}

impl Document {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sbom, Self::Provenance, Self::Lock];

    /// The document whose file has this ending.
    #[must_use]
    pub fn of_ending(ending: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|document| document.ending() == ending)
    }

    /// The end of the name of its file, after the digest of the artifact.
    #[must_use]
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Sbom => "sbom.json",
            Self::Provenance => "provenance.json",
            Self::Lock => "lock",
        }
    }
}

/// A build that has ended well.
pub(super) struct Outcome<'a> {
    pub(super) spec: &'a FunctionSpec,
    /// Digest of the files of the code.
    pub(super) tree: &'a str,
    pub(super) packages: &'a [Package],
    /// The lock of these; `None`: the code has one, or no packages.
    pub(super) lock: Option<&'a Lock>,
    /// The programs of the build.
    pub(super) tools: &'a str,
    pub(super) isolation: &'a str,
    pub(super) layout: &'a str,
    pub(super) id: String,
    pub(super) started: Time,
    pub(super) ended: Time,
}

impl Outcome<'_> {
    /// The text of a document, if there is such a one. The bill of materials is the same for the same packages.
    pub(super) fn write(&self, document: Document, artifact: &ArtifactStatus) -> Option<String> {
        let value = match document {
            Document::Sbom => self.sbom(artifact),
            Document::Provenance => self.provenance(artifact),
            Document::Lock => return self.lock.map(|lock| lock.text.clone()),
        };
        Some(format!("{value:#}\n"))
    }

    fn sbom(&self, artifact: &ArtifactStatus) -> Value {
        let component = |package: &Package| {
            let mut about = json!({
                "type": "library", "name": package.name, "version": package.version, "purl": package.purl,
                "bom-ref": package.purl, "scope": if package.builds { "excluded" } else { "required" },
            });
            if let Some(licence) = &package.licence {
                about["licenses"] = json!([{"license": {"name": licence}}]);
            }
            if let Some(digest) = &package.sha512 {
                about["hashes"] = json!([{"alg": "SHA-512", "content": digest}]);
            }
            about
        };
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "tools": {"components": [{"type": "application", "name": "berth", "version": env!("CARGO_PKG_VERSION")}]},
                "component": {
                    "type": "application", "bom-ref": artifact.digest, "name": self.spec.name.name(), "version": artifact.digest,
                    "hashes": [{"alg": "SHA-256", "content": digits(artifact)}],
                },
            },
            "components": self.packages.iter().map(component).collect::<Vec<_>>(),
        })
    }

    fn provenance(&self, artifact: &ArtifactStatus) -> Value {
        let spec = self.spec;
        let bundler = spec.bundler.as_ref().map(|bundler| match bundler {
            Bundler::Rollup { config } => json!({"name": "rollup", "configFile": config}),
            Bundler::Esbuild { config } => json!({"name": "esbuild", "configFile": config}),
        });
        let mut inputs = vec![json!({
            "name": CODE, "digest": {"sha256": self.tree.trim_start_matches("sha256:")},
            "annotations": {"digestOf": "the list of files with their digests, names and modes"},
        })];
        inputs.extend(self.packages.iter().map(|package| match &package.sha512 {
            Some(digest) => json!({"uri": package.purl, "digest": {"sha512": digest}}),
            None => json!({"uri": package.purl}),
        }));
        let byproducts = self.lock.map(|lock| {
            let found = digest(lock.text.as_bytes());
            json!({"name": lock.name, "digest": {"sha256": found.trim_start_matches("sha256:")}})
        });
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": format!("{}.zip", spec.name.name()), "digest": {"sha256": digits(artifact)}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "function": spec.name.name(), "type": spec.kind,
                        "entrypoint": format!("{}.{}", spec.entrypoint.module, spec.entrypoint.function),
                        "version": spec.version, "bundler": bundler,
                        "programmingModel": (spec.language == Language::Python).then(|| spec.entry.model.as_str()),
                        "authLevel": spec.entry.auth.as_str(),
                    },
                    "internalParameters": {"tools": self.tools, "isolation": self.isolation, "layout": self.layout},
                    "resolvedDependencies": inputs,
                },
                "runDetails": {
                    "builder": {"id": BUILD_TYPE, "version": {"berth": env!("CARGO_PKG_VERSION")}},
                    "metadata": {
                        "invocationId": self.id, "startedOn": self.started.to_string(), "finishedOn": self.ended.to_string(),
                    },
                    "byproducts": byproducts.into_iter().collect::<Vec<_>>(),
                },
            },
        })
    }
}

/// Provenance for one function: `text`, as it lies beside the artifact, with the place of the code that `spec` names. Without a spec
/// it names no place. `None`: it cannot be read.
pub(super) fn provenance_for(text: &str, spec: Option<&FunctionSpec>) -> Option<String> {
    let mut document: Value = serde_json::from_str(text).ok()?;
    let build = document.pointer_mut("/predicate/buildDefinition")?;
    let source = spec.map(|spec| spec.source.to_string());
    // Those of earlier versions of Berth have the places of the function that was built first.
    let parameters = build.get_mut("externalParameters")?.as_object_mut()?;
    parameters.remove("sourceUri");
    parameters.extend(source.clone().map(|uri| ("sourceUri".to_owned(), uri.into())));
    let inputs = build.get_mut("resolvedDependencies")?.as_array_mut()?;
    inputs.retain(|input| !matches!(input["name"].as_str(), Some(ARCHIVE | COMMIT)));
    for code in inputs.iter_mut().filter(|input| input["name"] == CODE).filter_map(Value::as_object_mut) {
        code.remove("uri");
        code.extend(source.clone().map(|uri| ("uri".to_owned(), uri.into())));
    }
    inputs.extend(spec.into_iter().flat_map(places));
    Some(format!("{document:#}\n"))
}

/// The archive and the commit that a spec names.
fn places(spec: &FunctionSpec) -> Vec<Value> {
    let uri = spec.source.to_string();
    let archive = spec.sha256.as_ref();
    let archive = archive.map(|digest| json!({"name": ARCHIVE, "uri": uri, "digest": {"sha256": digest}}));
    let commit = match &spec.source {
        CodeUri::Git { commit, .. } => Some(json!({"name": COMMIT, "uri": uri, "digest": {"gitCommit": commit}})),
        _ => None,
    };
    archive.into_iter().chain(commit).collect()
}

fn digits(artifact: &ArtifactStatus) -> &str {
    artifact.digest.trim_start_matches("sha256:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::Declared;

    /// The spec of `words` in a namespace, with its code at `source`.
    fn spec(key: &str, source: &str, sha256: Option<&str>) -> FunctionSpec {
        let mut object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": "python", "sourceUri": source, "entrypoint": "handler.predict", "target": {"platform": "local"}},
        });
        if let Some(digest) = sha256 {
            object["spec"]["sourceSha256"] = digest.into();
        }
        let declared = Declared::read(key, object.to_string().as_bytes(), berth_control::store::Rev(1));
        FunctionSpec::clone(&declared.spec.expect("a right spec"))
    }

    /// Provenance of an artifact whose code was at the place of `spec`, as it lies on disk.
    fn stored(spec: &FunctionSpec) -> String {
        let tree = digest(b"files");
        let outcome = Outcome {
            spec,
            tree: &tree,
            packages: &[],
            lock: None,
            tools: "python 3.11",
            isolation: "bubblewrap",
            layout: "4",
            id: "b1".to_owned(),
            started: Time(1),
            ended: Time(2),
        };
        let artifact = ArtifactStatus { digest: digest(b"zip"), size: 3 };
        outcome.write(Document::Provenance, &artifact).expect("a document")
    }

    fn read(text: Option<String>) -> Value {
        serde_json::from_str(&text.expect("a document")).expect("JSON")
    }

    #[test]
    fn provenance_names_the_place_of_the_function_that_it_is_read_for() {
        let sum = "0".repeat(64);
        let secret = spec("secret/words", "file:/teams/secret/plans.zip", Some(&sum));
        let text = stored(&secret);
        assert!(!text.contains("/teams/secret") && !text.contains(&sum), "{text}");
        let open = spec("words", "file:/open/words", None);
        let commit = "1".repeat(40);
        let git = spec("git/words", &format!("git+https://example.com/code.git@{commit}"), None);
        for (function, inputs) in [(&secret, 2), (&open, 1), (&git, 2)] {
            let uri = function.source.to_string();
            // Also from the document of an earlier version of Berth, which has the place of the first one.
            let mut earlier = read(Some(text.clone()));
            let build = &mut earlier["predicate"]["buildDefinition"];
            build["externalParameters"]["sourceUri"] = secret.source.to_string().into();
            build["resolvedDependencies"][0]["uri"] = secret.source.to_string().into();
            let archive = json!({"name": "archive", "uri": secret.source.to_string(), "digest": {"sha256": sum}});
            build["resolvedDependencies"].as_array_mut().expect("a list").push(archive);
            for text in [text.clone(), earlier.to_string()] {
                let told = read(provenance_for(&text, Some(function)));
                let build = &told["predicate"]["buildDefinition"];
                assert_eq!(build["externalParameters"]["sourceUri"], uri.as_str());
                let found = build["resolvedDependencies"].as_array().expect("a list");
                assert_eq!(found.len(), inputs, "{found:?}");
                assert!(found.iter().all(|input| input["uri"] == uri.as_str()), "{found:?}");
                assert_eq!(told["subject"], earlier["subject"]);
            }
            let nobody = provenance_for(&earlier.to_string(), None).expect("a document");
            assert!(!nobody.contains("file:") && !nobody.contains("\"uri\""), "{nobody}");
        }
        assert_eq!(provenance_for("no document", Some(&open)), None);
    }
}
