//! Documents beside an artifact: the bill of its materials, how it came to be, and the lock of its packages.
//!
//! Sources: CycloneDX 1.6 (ECMA-424), the in-toto Statement v1, and SLSA Provenance v1 (slsa.dev/spec/v1.0/provenance).

use berth_spec::Time;
use serde_json::{Value, json};

use super::{lock::Lock, packages::Package};
use crate::{
    deployment::{Bundler, CodeUri, FunctionSpec, digest},
    status::ArtifactStatus,
};

/// Name of the way in which artifacts are built, in provenance.
const BUILD_TYPE: &str = "https://berth.dev/functions/build/v1";

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
                    "type": "application", "bom-ref": artifact.digest, "name": self.spec.name.as_str(), "version": artifact.digest,
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
            "name": "code", "uri": spec.source.to_string(),
            "digest": {"sha256": self.tree.trim_start_matches("sha256:")},
            "annotations": {"digestOf": "the list of files with their digests, names and modes"},
        })];
        if let Some(archive) = &spec.sha256 {
            inputs.push(json!({"name": "archive", "uri": spec.source.to_string(), "digest": {"sha256": archive}}));
        }
        if let CodeUri::Git { commit, .. } = &spec.source {
            inputs.push(json!({"name": "commit", "uri": spec.source.to_string(), "digest": {"gitCommit": commit}}));
        }
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
            "subject": [{"name": format!("{}.zip", spec.name), "digest": {"sha256": digits(artifact)}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "function": spec.name.as_str(), "type": spec.kind, "sourceUri": spec.source.to_string(),
                        "entrypoint": format!("{}.{}", spec.entrypoint.module, spec.entrypoint.function),
                        "version": spec.version, "bundler": bundler,
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

fn digits(artifact: &ArtifactStatus) -> &str {
    artifact.digest.trim_start_matches("sha256:")
}
