//! The methods that a runtime lets its callers use, and where each wants the model's id.

use std::collections::BTreeMap;

/// The service of the runtime itself: nobody calls it through the gateway.
const SPI: [&str; 2] = ["mmesh.ModelRuntime/", "com.ibm.watson.tas.internal.proto.ModelServer/"];

/// The service of the Open Inference Protocol: its messages about a model have its name in field 1.
const OIP: &str = "inference.GRPCInferenceService/";

/// The field of the model's name in messages of [`OIP`].
const OIP_NAME: &[u32] = &[1];

/// The most field numbers of a path: messages are not nested deeper than that in any protocol that names models.
const DEEPEST: usize = 16;

/// The methods by their full names without the first slash.
#[derive(Debug, Clone, Default)]
pub(super) struct Methods {
    paths: BTreeMap<String, Vec<u32>>,
    any: bool,
}

impl Methods {
    pub(super) fn new(paths: BTreeMap<String, Vec<u32>>, any: bool) -> Self {
        let any = any || paths.is_empty();
        let right = |path: &Vec<u32>| path.len() <= DEEPEST && path.iter().all(|field| (1..1 << 29).contains(field));
        let paths = paths.into_iter();
        let paths = paths.map(|(method, path)| {
            let method = method.strip_prefix('/').map(str::to_owned).unwrap_or(method);
            let path = if right(&path) { path } else { Vec::new() };
            (method, path)
        });
        Self { paths: paths.collect(), any }
    }

    /// The field of a method's requests that takes the id; empty: none.
    ///
    /// # Errors
    /// The method may not be called: for people.
    pub(super) fn path(&self, uri: &str) -> Result<&[u32], String> {
        let method = uri.strip_prefix('/').unwrap_or(uri);
        if SPI.iter().any(|service| method.starts_with(service)) {
            return Err(format!("{method} is a method of the runtime itself and cannot be called through the gateway"));
        }
        match self.paths.get(method) {
            Some(path) => Ok(path),
            None if self.any && method.starts_with(OIP) => Ok(OIP_NAME),
            None if self.any => Ok(&[]),
            None => Err(format!("the model's runtime has no method {method} among those that it lets be called")),
        }
    }

    /// True if callers may use the method at the path of `uri`.
    pub(super) fn has(&self, uri: &str) -> bool {
        self.path(uri).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_all_there_is_unless_any_method_goes() {
        let of = |any| Methods::new([("a.B/c".to_owned(), vec![1, 2]), ("/a.B/d".to_owned(), vec![])].into(), any);
        let listed = of(false);
        assert_eq!((listed.path("/a.B/c"), listed.path("/a.B/d")), (Ok(&[1, 2][..]), Ok(&[][..])));
        assert!(listed.path("/a.B/e").is_err());
        assert_eq!(of(true).path("/a.B/e"), Ok(&[][..]));
        let open = Methods::new(BTreeMap::new(), false);
        assert_eq!(open.path("/x.Y/z"), Ok(&[][..]));
        assert_eq!(open.path("/inference.GRPCInferenceService/ModelInfer"), Ok(&[1][..]));
        assert!(open.path("/mmesh.ModelRuntime/unloadModel").is_err());
        assert_eq!(
            Methods::new([("a/b".to_owned(), vec![0])].into(), false).path("/a/b"),
            Ok(&[][..]),
            "no such field"
        );
    }
}
