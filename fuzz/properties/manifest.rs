//! Properties that hold for any text as a manifest.

use berth_spec::manifest::{ParseContext, from_value, parse};

/// Errors have words and remedies; what is accepted is kept so that it reads the same again.
pub(crate) fn manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let context =
        ParseContext { file: "-".to_owned(), base: Some("file:///models/".to_owned()), ..ParseContext::default() };
    match parse(text, &context) {
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| !error.to_string().is_empty()));
        }
        Ok(deployments) => {
            for deployment in deployments {
                let context =
                    ParseContext { file: "-".to_owned(), base: deployment.base.clone(), ..ParseContext::default() };
                let again = from_value(&deployment.raw, &context).expect("it was accepted before");
                assert_eq!(again, deployment);
            }
        }
    }
}
