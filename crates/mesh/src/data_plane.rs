//! The gRPC methods of models that may be called, and where their requests name the model: ModelMesh's configuration of the data
//! plane.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use serde::Deserialize;

/// The methods as they are now: they may change while the gateway runs. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CurrentDataPlane(Arc<ArcSwap<DataPlane>>);

impl CurrentDataPlane {
    /// Takes other methods for calls that begin from now on.
    pub fn set(&self, methods: DataPlane) {
        self.0.store(Arc::new(methods));
    }

    /// The methods in force for a call that begins now.
    #[must_use]
    pub fn get(&self) -> Arc<DataPlane> {
        self.0.load_full()
    }
}

impl From<DataPlane> for CurrentDataPlane {
    fn from(methods: DataPlane) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(methods)))
    }
}

/// The gRPC methods of models that may be called, as ModelMesh's configuration of the data plane lists them. By default all.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataPlane {
    /// By their full names: `pkg.Service/Method`.
    #[serde(default)]
    rpc_configs: BTreeMap<String, RpcConfig>,
    /// Others may be called, too. A configuration that does not say so allows only what it lists.
    #[serde(default)]
    allow_other_rpcs: bool,
}

impl Default for DataPlane {
    fn default() -> Self {
        Self { rpc_configs: BTreeMap::new(), allow_other_rpcs: true }
    }
}

/// One method.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RpcConfig {
    /// Field numbers from the request down to the text that names the model; empty: metadata name it.
    #[serde(default)]
    id_extraction_path: Vec<u32>,
    /// The name is that of an alias. Names of aliases and models are of one kind here.
    #[serde(default, rename = "vModelId")]
    _alias: bool,
}

/// The most field numbers of a path: messages nest a few levels deep, and each level is walked for every request.
const MAX_PATH_FIELDS: usize = 16;

impl DataPlane {
    /// Reads ModelMesh's JSON.
    ///
    /// # Errors
    /// For people: what is wrong in it.
    pub fn parse(json: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let wrong = |config: &RpcConfig| {
            let path = &config.id_extraction_path;
            path.len() > MAX_PATH_FIELDS || path.contains(&0)
        };
        if let Some((method, _)) = read.rpc_configs.iter().find(|(_, config)| wrong(config)) {
            return Err(format!(
                "{method}: idExtractionPath has 1 to {MAX_PATH_FIELDS} field numbers, each at least 1"
            ));
        }
        Ok(read)
    }

    /// The path of the field in which requests of a method name the model; empty: none. `None`: the method may not be called.
    pub(crate) fn path(&self, uri: &str) -> Option<&[u32]> {
        let method = uri.strip_prefix('/').unwrap_or(uri);
        match self.rpc_configs.get(method) {
            Some(config) => Some(&config.id_extraction_path),
            None => self.allow_other_rpcs.then_some(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modelmesh_writes_it_so() {
        let json =
            r#"{"rpcConfigs": {"a.B/c": {"idExtractionPath": [1, 1], "vModelId": true}}, "allowOtherRpcs": false}"#;
        let read = DataPlane::parse(json).expect("it is right");
        assert_eq!((read.path("/a.B/c"), read.path("/a.B/d")), (Some(&[1, 1][..]), None));
        assert_eq!(DataPlane::parse("{}").expect("nothing is said").path("/x/y"), None);
        assert_eq!(DataPlane::default().path("/x/y"), Some(&[][..]), "there is no configuration");
        assert!(DataPlane::parse(r#"{"rpcConfig": {}}"#).is_err(), "a word with a mistake must not open all methods");
        assert!(DataPlane::parse(&json.replace("[1, 1]", "[0]")).is_err_and(|error| error.contains("a.B/c")));
    }
}
