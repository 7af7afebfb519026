//! Rendered objects of each version, byte for byte: whoever changes one restarts the pods of everybody who upgrades.
//! `UPDATE=1` writes files of a new version; those of a version that was shipped never change.

use berth_operator::render::{Installation, Record, SHIPPED, Sidecars, endpoint_picker};
use serde_json::Value;

use crate::fixtures::{executor, full, least, model, pooled, scaled};

/// The least has a cluster that is able to do nothing.
fn installation(version: u32, name: &str) -> Installation {
    let minor = if version == 1 || name == "least" { 20 } else { 33 };
    Installation::new("registry.example/berth:1".to_owned(), None, Sidecars::Auto, minor)
}

#[test]
fn every_version_renders_as_it_did_when_it_was_shipped() {
    let mut wrong = Vec::new();
    for version in 1..=SHIPPED.newest() {
        let specs =
            [("least", least()), ("full", full()), ("executor", executor()), ("scaled", scaled()), ("pool", pooled())];
        for (name, spec) in specs {
            if version == 1 && matches!(name, "executor" | "scaled" | "pool") {
                continue;
            }
            let installation = installation(version, name);
            let record = Record { version, ..SHIPPED.record(&installation, 1) };
            let model = model(spec);
            let mut objects = SHIPPED.render(&model, &record).expect("known");
            objects.extend(endpoint_picker(&model, &record, "uid-of-pool").expect("complete"));
            let text = format!("{}\n", serde_json::to_string_pretty(&Value::Array(objects)).expect("JSON"));
            let path = format!("{}/tests/golden/v{version}-{name}.json", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("UPDATE").is_some() {
                std::fs::File::create(&path)
                    .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
                    .expect("written");
            }
            let expected: Value =
                std::fs::read_to_string(&path).map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"));
            let actual: Value = serde_json::from_str(&text).expect("JSON");
            if actual != expected {
                wrong.push(path);
            }
        }
    }
    assert!(wrong.is_empty(), "these changed: {wrong:?}");
}

#[test]
fn a_version_of_a_newer_operator_is_refused() {
    let record = Record { version: SHIPPED.newest() + 1, ..SHIPPED.record(&"i".into(), 1) };
    let error = SHIPPED.render(&model(least()), &record).expect_err("unknown").to_string();
    assert!(error.contains("start the newer operator again"), "{error}");
}
