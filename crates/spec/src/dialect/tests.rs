use std::{collections::BTreeMap, collections::BTreeSet, sync::Arc};

use proptest::prelude::*;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{
    registry_v3::{CardRef, Declaration, DeploymentConfig, DeploymentManifest, Extension, ManifestMetadata},
    *,
};
use crate::{
    PinnedCard,
    manifest::{
        ManifestDeployment, ParseContext, from_value, parse,
        raw::{RawDeployment, Word},
    },
};

#[test]
fn the_dialect_page_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dialects.md");
    let made = reference_markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, &made).expect("docs/dialects.md is written");
    }
    let kept = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/dialects.md is out of date: UPDATE=1 cargo test -p berth-spec dialect");
}

/// The paths of the fields that hold values, maps of free keys among them.
fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    match schema.get("properties").and_then(Value::as_object) {
        Some(fields) => {
            let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            fields.iter().for_each(|(name, field)| leaves(field, &below(name), found));
        }
        None => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn every_field_of_the_registry_dialect_is_in_its_table_once() {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<DeploymentManifest>().to_value();
    let mut fields = BTreeSet::new();
    leaves(&schema, "", &mut fields);
    let table: Vec<String> = registry_v3::DIALECT.fields.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(table.len(), table.iter().collect::<BTreeSet<_>>().len(), "a field has two rows");
    // One row may stand for what has the same fields in the hub.
    let covers = |row: &str, field: &str| field == row || field.starts_with(&format!("{row}."));
    let missing: Vec<_> = fields.iter().filter(|field| !table.iter().any(|row| covers(row, field))).collect();
    let unknown: Vec<_> = table.iter().filter(|row| !fields.iter().any(|field| covers(row, field))).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; no field: {unknown:?}");
}

#[test]
fn every_field_of_kserves_objects_is_in_its_table() {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut fields = BTreeSet::new();
    for schema in [
        settings.clone().into_generator().into_root_schema_for::<kserve::Document<kserve::ServiceSpec>>(),
        settings.clone().into_generator().into_root_schema_for::<kserve::Document<kserve::PredictorSpec>>(),
        settings.into_generator().into_root_schema_for::<kserve::Document<kserve::TrainedSpec>>(),
    ] {
        leaves(&schema.to_value(), "", &mut fields);
    }
    let table: Vec<&str> = kserve::DIALECT.fields.iter().map(|field| field.path).collect();
    let covers = |row: &str, field: &str| field == row || field.starts_with(&format!("{row}."));
    let missing: Vec<_> = fields.iter().filter(|field| !table.iter().any(|row| covers(row, field))).collect();
    let refused = kserve::DIALECT.fields.iter().filter(|field| matches!(field.mapping, Mapping::Refused));
    let unknown: Vec<_> = table
        .iter()
        .filter(|row| !refused.clone().any(|refused| refused.path == **row))
        .filter(|row| !fields.iter().any(|field| covers(row, field)))
        .collect();
    assert!(missing.is_empty() && unknown.is_empty(), "without a row: {missing:?}; no field: {unknown:?}");
}

#[test]
fn every_field_of_a_serving_runtime_is_in_its_table() {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<kserve::serving_runtime::ServingRuntime>();
    let mut fields = BTreeSet::new();
    leaves(&schema.to_value(), "", &mut fields);
    let table: BTreeSet<String> =
        kserve::serving_runtime::DIALECT.fields.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(fields, table);
}

#[test]
fn every_field_of_a_function_is_in_the_table_of_etcd() {
    let known = function_field_paths();
    let below = |path: &str| known.iter().any(|other| other.starts_with(&format!("{path}.")));
    let fields: BTreeSet<&str> =
        known.iter().map(String::as_str).filter(|path| path.starts_with("spec.") && !below(path)).collect();
    let reached = etcd_v1alpha1::DIALECT.fields.iter().filter_map(|field| match field.mapping {
        Mapping::To(paths) => Some(paths),
        _ => None,
    });
    let reached: BTreeSet<&str> = reached.flatten().copied().filter(|path| path.starts_with("spec.")).collect();
    assert_eq!(reached, fields);
}

#[test]
fn tables_lead_to_fields_of_the_hub() {
    for dialect in ALL {
        let Some(known) = dialect.hub.field_paths() else { continue };
        for field in dialect.fields.iter().chain(dialect.inputs) {
            let Mapping::To(paths) = field.mapping else { continue };
            for path in paths {
                assert!(known.iter().any(|known| known == path), "{}: the hub has no field {path}", field.path);
            }
        }
    }
}

fn card(resources: Option<Value>) -> PinnedCard {
    let function = json!({"module": "src.model", "function": "f"});
    let mut card = json!({
        "schemaVersion": "3.1.0",
        "metadata": {"name": "m", "version": "1.2.3", "description": "a model of a test", "owner": "a@example.com"},
        "runtime": {"framework": "custom", "framework_version": "1.0.0", "python_version": "3.11", "dependencies": []},
        "artifacts": {"storage_type": "http", "model_path": "https://example.com/model.bin"},
        "code": {"repository": "https://example.com/m.git", "path": "src/", "ref": "v1"},
        "preprocessing": function, "postprocessing": function,
        "interface": {"input_schema": {}, "output_schema": {"type": "object"}},
    });
    if let Some(resources) = resources {
        card["resources"] = resources;
    }
    let pinned = json!({
        "repository": "https://example.com/m.git", "ref": "v1.2.3", "commit": "0".repeat(40),
        "codeCommit": "1".repeat(40), "card": card,
    });
    serde_json::from_value(pinned).expect("a card")
}

prop_compose! {
    fn declaration()(
        (id, region, path) in ("[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", "[a-z]{2}-[a-z]{2,6}-[1-9]", "[a-z/.-]{1,20}"),
        (enabled, replicas, priority) in (any::<bool>(), 0_u32..=1000, 1_u8..=100),
        worker_selector in proptest::collection::btree_map("[a-z]{1,8}", "[a-zA-Z0-9 ._-]{0,12}", 0..4),
        endpoint in proptest::option::of("https://api\\.example\\.com/v1/[a-z]{1,8}"),
        people in (proptest::option::of("[ -~]{1,20}"), proptest::option::of("[ -~]{1,20}"), proptest::option::of("[ -~]{1,20}")),
        resources in proptest::option::of(proptest::sample::select(vec![
            json!({"cpu": 0.1, "memory": "512Mi"}),
            json!({"cpu": 4, "memory": "3Gi", "gpu": 2, "gpu_type": "T4"}),
            json!({"cpu": 2.5, "memory": "1Gi", "gpu": 1}),
        ])),
        environment in proptest::sample::select(vec!["production", "staging"]),
        commit in proptest::option::of("[0-9a-f]{40}"),
        berth in proptest::sample::select(vec![
            json!({}),
            json!({"rollout": {"whenFull": "recreate", "deadline": "5m"}, "timeout": "5s"}),
            json!({"minReplicas": 1, "scaling": {"targetConcurrency": 4}, "batching": {"maxRows": 8, "maxDelay": "2ms"}}),
            json!({"minReplicas": 0, "idleAfter": "10m", "pinned": true, "idempotent": false, "warmup": "off"}),
            json!({"regions": {"eu-west-1": 2, "us-east-1": {"min": 0, "max": 1}}, "placement": {"spread": "worker"}}),
            json!({"limits": {"rate": 5}, "concurrency": {"max": 3}, "rollout": {"drainTimeout": "5s", "canary": 10}}),
        ]),
    ) -> Declaration {
        let card = card(resources);
        let mut berth: Extension = serde_json::from_value(berth).expect("a block");
        let replicas = if !enabled {
            0
        } else if berth.regions.is_empty() {
            replicas
        } else {
            3
        };
        if replicas == 0 {
            // What belongs to replicas is not kept without them.
            (berth.min_replicas, berth.regions) = (None, BTreeMap::new());
            berth.idle_after = None;
        }
        let (owner, deployed_at, deployed_by) = people;
        let reference = CardRef { repository: card.repository.clone(), path: path.clone(), reference: card.reference.clone() };
        let manifest = DeploymentManifest {
            id,
            model_card_ref: reference,
            enabled,
            // What a disabled deployment would have is not kept.
            deployment_config: DeploymentConfig {
                region,
                replicas,
                priority,
                worker_selector,
                endpoint,
            },
            metadata: ManifestMetadata { owner, deployed_at, deployed_by },
            berth,
        };
        Declaration {
            manifest: Arc::new(manifest),
            card: Arc::new(card),
            environment: environment.to_owned(),
            path: format!("models/{path}.yaml"),
            commit,
        }
    }
}

proptest! {
    #[test]
    fn a_registry_manifest_comes_back_from_the_hub(declaration in declaration()) {
        let hub = declaration.to_hub().expect("it carries over");
        prop_assert_eq!(Declaration::from_hub(&hub), Ok(declaration));
    }

    #[test]
    fn the_hub_reads_what_it_wrote(declaration in declaration()) {
        let hub = declaration.to_hub().expect("it carries over");
        prop_assert_eq!(RawDeployment::read(&hub.written()), Ok(hub.clone()));
        prop_assert_eq!(RawDeployment::read(&hub.with_defaults()).map(|read| read.written()), Ok(hub.written()));
        let context = ParseContext::default();
        let typed = ManifestDeployment::of(hub.clone(), &context).expect("the hub takes it");
        prop_assert_eq!(from_value(&hub.written(), &context), Ok(typed.clone()));
        let yaml = serde_saphyr::to_string(&hub.written()).expect("YAML");
        prop_assert_eq!(parse(&yaml, &context), Ok(vec![typed]));
    }
}

fn plain() -> Declaration {
    let card = card(None);
    Declaration {
        manifest: Arc::new(DeploymentManifest {
            id: "iris-prod".to_owned(),
            model_card_ref: CardRef {
                repository: card.repository.clone(),
                path: "model-card.yaml".to_owned(),
                reference: card.reference.clone(),
            },
            enabled: true,
            deployment_config: DeploymentConfig {
                region: "eu-west-1".to_owned(),
                replicas: 2,
                priority: 80,
                worker_selector: BTreeMap::new(),
                endpoint: None,
            },
            metadata: ManifestMetadata::default(),
            berth: Extension::default(),
        }),
        card: Arc::new(card),
        environment: "production".to_owned(),
        path: "models/production/iris-prod.yaml".to_owned(),
        commit: None,
    }
}

#[test]
fn a_field_that_the_hub_does_not_take_is_named_as_the_registry_calls_it() {
    let errors = |change: fn(&mut DeploymentManifest)| {
        let mut declaration = plain();
        change(Arc::make_mut(&mut declaration.manifest));
        let errors = declaration.to_hub().expect_err("refused");
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let many = errors(|manifest| manifest.deployment_config.replicas = 5000);
    assert_eq!(many, ["deployment_config.replicas: 5000 is too high; give 0 to 1000"]);
    let label = errors(|manifest| {
        manifest.deployment_config.worker_selector.insert("pool".to_owned(), "a,b".to_owned());
    });
    assert_eq!(label.len(), 1);
    assert!(label[0].starts_with("deployment_config.worker_selector: ',' is not allowed in a label"), "{label:?}");
}

#[test]
fn what_a_registry_cannot_say_does_not_convert_back() {
    let mut hub = plain().to_hub().expect("it carries over");
    hub.spec.restart = Some(Word("now".to_owned()));
    let errors = Declaration::from_hub(&hub).expect_err("a registry cannot restart replicas");
    assert_eq!(errors.iter().map(|error| error.path.as_str()).collect::<Vec<_>>(), ["spec.restart"]);
}

#[test]
fn a_disabled_deployment_has_no_replicas() {
    let mut hub = plain().to_hub().expect("it carries over");
    assert!(hub.disable() && !hub.disable());
    let mut off = plain();
    let manifest = Arc::make_mut(&mut off.manifest);
    (manifest.enabled, manifest.deployment_config.replicas) = (false, 7);
    assert_eq!(off.to_hub(), Ok(hub));
}
