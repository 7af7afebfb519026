//! The routes and the OpenAPI document say the same.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

#[test]
fn every_route_is_documented_and_every_documented_route_exists() {
    let routed: BTreeSet<(String, String)> = routes()
        .iter()
        .flat_map(|(path, methods, _)| methods.iter().map(|method| ((*path).to_owned(), (*method).to_owned())))
        .collect();
    let document = serde_json::to_value(document()).expect("it is JSON");
    let paths = document["paths"].as_object().expect("paths are an object");
    let documented: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().into_iter().flat_map(|item| item.keys());
            methods.filter(|key| *key != "parameters").map(|method| (path.clone(), method.clone())).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(routed, documented);
}

/// Checks the document for its readers: references resolve, operation ids are unique, every operation describes its
/// response, and every path parameter is declared.
#[test]
fn the_document_is_sound() {
    let document = serde_json::to_value(document()).expect("it is JSON");
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.")));
    references(&document, &mut |reference| {
        let pointer = reference.strip_prefix('#').expect("references are local");
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    });
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths are an object") {
        for (method, operation) in item.as_object().expect("a path is an object") {
            let id = operation["operationId"].as_str().expect("an operation has an id");
            assert!(ids.insert(id.to_owned()), "{method} {path}: the id {id:?} is taken");
            assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{method} {path}");
            let well = |(status, _): (&String, &Value)| status.starts_with('2');
            let answers = operation["responses"].as_object();
            assert!(answers.is_some_and(|all| all.iter().any(well)), "{method} {path} says nothing of success");
            for part in path.split('/').filter_map(|part| part.strip_prefix('{')) {
                let name = part.trim_end_matches('}');
                let parameters = operation["parameters"].as_array().expect("it has parameters");
                assert!(
                    parameters.iter().any(|parameter| parameter["name"] == name && parameter["in"] == "path"),
                    "{method} {path}: {name} is not declared"
                );
            }
        }
    }
}

fn references(value: &Value, check: &mut impl FnMut(&str)) {
    match value {
        Value::Object(object) => {
            if let Some(reference) = object.get("$ref").and_then(Value::as_str) {
                check(reference);
            }
            object.values().for_each(|value| references(value, check));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, check)),
        _ => {}
    }
}
