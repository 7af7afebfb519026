use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::{
    ByteSize, Isolation, Replicas, UseLimits,
    deployment::{GpuNeed, Percent, Scaling, SecondCopy, Spread, Warmup},
};

fn context() -> ParseContext {
    ParseContext { file: "iris.yaml".to_owned(), base: Some("file:///models/".to_owned()), ..ParseContext::default() }
}

const FULL: &str = r#"# Everything that can be said.
apiVersion: berth.dev/v1
kind: ModelDeployment
metadata:
  name: iris
  labels: {team: flowers}
  annotations: {note: "any text, at all"}
spec:
  model:
    format: onnx
    uri: file:iris.onnx
    sha256: "0000000000000000000000000000000000000000000000000000000000000000"
    version: "2"
    inputs: [{name: x, datatype: FP32, shape: [-1, 4]}]
    outputs: [{name: label, datatype: INT64, shape: [-1]}]
  replicas: {min: 0, max: 2}
  idleAfter: 10m
  priority: 70
  resources: {memory: 512MiB, cpu: 0.5, gpu: {count: 2, kind: nvidia-h200, memory: 80GiB}}
  selector:
    required: {zone: a}
    matchLabels: {disk: ssd}
    preferred: {gpu: "no"}
  rollout: {strategy: blue-green, whenFull: recreate, drainTimeout: 5s, deadline: 1m, canary: 10}
  warmup: {inputs: [{name: x, datatype: FP32, shape: [1, 4], data: [[0, 1, 2, 3.5]]}]}
  timeout: 1500ms
  concurrency: {max: 8, queue: 16}
  limits: {rate: 100, burst: 20, inFlight: 16, bytesPerSecond: 10MiB, maxWait: 20ms}
  batching: {maxRows: 32, maxDelay: 2ms}
  runtime: {executionProvider: cpu, threads: 2, isolation: sandbox}
  placement: {spread: worker}
  pinned: true
  scaling: {targetRate: 600, targetConcurrency: 2.5, secondCopy: never}
  idempotent: false
"#;

const MINIMAL: &str = "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: a}\n\
                       spec: {model: {format: onnx, uri: 's3://models/a.onnx'}}\n";

#[test]
fn what_is_no_manifest_at_all_is_told_so_once() {
    for text in ["a: b", "[1]", "just text", "name: iris\nmodel: {format: onnx}"] {
        let errors = parse(text, &context()).expect_err(text);
        let [error] = errors.as_slice() else { panic!("{text}: {errors:#?}") };
        assert!(error.message.contains("not a manifest") && error.remedy.contains("apiVersion"), "{error}");
    }
    // Of a list, each item.
    let errors = parse("[1, 2]", &context()).expect_err("no manifests");
    assert_eq!(errors.iter().map(|error| error.path.as_str()).collect::<Vec<_>>(), ["[0]", "[1]"]);
    let misspelt = parse("apiversion: berth.dev/v1\nknd: ModelDeployment", &context()).expect_err("misspelt");
    assert!(misspelt.iter().any(|error| error.remedy.contains("did you mean")), "{misspelt:#?}");
}

#[test]
fn every_field_arrives() {
    let all = parse(FULL, &context()).expect("a right manifest");
    let [iris] = all.as_slice() else { panic!("one document") };
    let spec = &iris.spec;
    assert_eq!(iris.name.as_str(), "iris");
    assert_eq!(iris.labels["team"], "flowers");
    assert_eq!(&*spec.model.uri, "file:///models/iris.onnx");
    assert_eq!(iris.base, context().base);
    assert_eq!(spec.model.signature.as_ref().map(|s| (s.inputs.len(), s.outputs.len())), Some((1, 1)));
    assert_eq!(spec.replicas, Replicas { min: 0, max: 2 });
    assert_eq!(spec.idle_after, Some(Duration::from_secs(600)));
    assert_eq!(spec.memory, Some(ByteSize::mib(512)));
    assert_eq!(spec.selector.required.len(), 2);
    assert_eq!(spec.timeout, Duration::from_millis(1500));
    let Warmup::Given(request) = &spec.warmup else { panic!("a given warm-up") };
    assert_eq!(&**request, r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[[0,1,2,3.5]]}]}"#);
    let gpu = GpuNeed { count: 2, kind: Some("nvidia-h200".to_owned()), memory: Some(ByteSize::gib(80)) };
    assert_eq!(spec.gpu, Some(gpu));
    assert_eq!((spec.runtime.threads, spec.runtime.isolation), (2, Some(Isolation::Sandbox)));
    assert_eq!((spec.spread, spec.pinned, spec.idempotent), (Spread::Worker, true, false));
    let scaling = Scaling { target_rate: Some(600.0), target_concurrency: Some(2.5), second_copy: SecondCopy::Never };
    assert_eq!(spec.scaling, scaling);
    assert_eq!(spec.rollout.canary.map(Percent::get), Some(10));
    let limits = UseLimits {
        rate: Some(100),
        burst: Some(20),
        in_flight: Some(16),
        bytes_per_second: Some(ByteSize::mib(10)),
        max_wait: Some(Duration::from_millis(20)),
    };
    assert_eq!(spec.limits, limits);
    let burst = spec_with("limits: {burst: 3}").expect_err("no rate");
    assert!(burst[0].starts_with("spec.limits.burst: a burst needs a rate"), "{burst:?}");
}

#[test]
fn all_requests_are_no_canary() {
    let canary = |percent: &str| {
        spec_with(&format!("rollout: {{canary: {percent}}}")).map(|spec| spec.rollout.canary.map(Percent::get))
    };
    assert_eq!([canary("0"), canary("99"), canary("100")], [Ok(Some(0)), Ok(Some(99)), Ok(None)]);
    assert_eq!(canary("101"), Err(vec!["spec.rollout.canary: 101 is too high; give 0 to 100".to_owned()]));
    assert!(canary("-1").is_err() && canary("10%").is_err());
}

/// The spec of the minimal manifest with more in it.
fn spec_with(more: &str) -> Result<crate::Spec, Vec<String>> {
    let text = MINIMAL.replace("spec: {", &format!("spec: {{{more}, "));
    let read = parse(&text, &context()).map(|mut all| all.remove(0).spec);
    read.map_err(|errors| {
        errors.iter().map(|error| format!("{}: {}; {}", error.path, error.message, error.remedy)).collect()
    })
}

#[test]
fn regions_add_up() {
    let spec = spec_with("replicas: {regions: {eu: {min: 1, max: 3}, us: 2, asia: {min: 0}}}").expect("right");
    assert_eq!(spec.replicas, Replicas { min: 3, max: 6 });
    assert_eq!(spec.regions["eu"], Replicas { min: 1, max: 3 });
    assert_eq!(spec.regions["us"], Replicas { min: 2, max: 2 });
    assert_eq!(spec.regions["asia"], Replicas { min: 0, max: 1 });
    let said = spec_with("replicas: {min: 3, max: 6, regions: {eu: {min: 1, max: 3}, us: 2, asia: {min: 0}}}");
    assert_eq!(said, Ok(spec));
    for (wrong, error) in [
        (
            "{min: 2, regions: {eu: 1, us: 2}}",
            "spec.replicas.min: min is 2, and the regions have 3 together; leave min out, or change the regions so that they add up to 2",
        ),
        (
            "{max: 9, regions: {eu: {min: 1, max: 2}}}",
            "spec.replicas.max: max is 9, and the regions have 2 together; leave max out, or change the regions so that they add up to 9",
        ),
        (
            "{regions: {eu: {min: 3, max: 2}}}",
            "spec.replicas.regions: in eu max (2) is less than min (3); set max to at least 3, or min to at most 2",
        ),
        ("{regions: {eu: 600, us: 600}}", "spec.replicas.regions: 1200 replicas in all regions; keep at most 1000"),
        (
            "{regions: {'a,b': 1}}",
            "spec.replicas.regions: ',' is not allowed in a label; selectors could not name it: remove it",
        ),
        ("{max: 2}", "spec.replicas.min: the field \"min\" is missing; add `min: 0` for on demand, or `regions`"),
    ] {
        assert_eq!(spec_with(&format!("replicas: {wrong}")), Err(vec![error.to_owned()]), "{wrong}");
    }
}

/// None of what says where and how many is part of what is loaded.
#[test]
fn where_and_how_many_make_no_new_revision() {
    let id = |spec: crate::Spec| {
        let name = crate::DeploymentName::new("a").expect("a name");
        let deployment = crate::Deployment {
            name,
            generation: crate::Generation(1),
            labels: crate::deployment::Labels::default(),
            origin: crate::Origin::API,
            created: crate::Time::ZERO,
            deleting: false,
            resource_version: 0,
            spec,
            digest: None,
            artifact: None,
        };
        deployment.revision_id()
    };
    let plain = id(spec_with("priority: 50").expect("right"));
    for more in [
        "resources: {cpu: 2, gpu: {count: 1}}",
        "replicas: {regions: {eu: 1}}",
        "placement: {spread: worker}, pinned: true, idempotent: false",
        "scaling: {targetRate: 5}",
        "rollout: {canary: 5}",
    ] {
        assert_eq!(id(spec_with(more).expect("right")), plain, "{more}");
    }
    let isolated = |level: &str| id(spec_with(&format!("runtime: {{isolation: {level}}}")).expect("right"));
    assert!(
        isolated("process") != plain && isolated("process") != isolated("sandbox"),
        "another process is another load"
    );
    let typed = MINIMAL.replace("format: onnx", "format: onnx, type: ranker");
    let typed = parse(&typed, &context()).expect("right").remove(0).spec;
    assert_eq!(typed.model_type.as_deref(), Some("ranker"));
    assert_eq!(id(typed), plain);
}

#[test]
fn what_was_written_parses_to_the_same() {
    let first = parse(FULL, &context()).expect("right").remove(0);
    let again = from_value(&first.raw, &context()).expect("still right");
    assert_eq!(first, again);
    let yaml = serde_saphyr::to_string(&first.raw).expect("written");
    assert_eq!(parse(&yaml, &context()).expect("read back"), [first]);
}

#[test]
fn defaults_are_shown() {
    let raw = &parse(MINIMAL, &context()).expect("right")[0].raw;
    let shown = with_defaults(raw).expect("right");
    assert_eq!(shown["spec"]["priority"], 50);
    assert_eq!(shown["spec"]["rollout"]["drainTimeout"], "30s");
    assert_eq!(shown["spec"].get("resources"), None);
    let (asked, again) = (from_value(raw, &context()), from_value(&shown, &context()));
    assert_eq!(asked.expect("right").spec, again.expect("still right").spec);
}

#[test]
fn what_the_server_adds_is_ignored_and_versions_are_kept() {
    let text = "{\"apiVersion\": \"berth.dev/v1\", \"kind\": \"ModelDeployment\", \"metadata\": {\"name\": \"a\",\n\
                \"generation\": 3, \"resourceVersion\": \"17\", \"creationTimestamp\": \"2026-01-01T00:00:00Z\", \"origin\": \"api\", \"deleting\": true},\n\
                \"spec\": {\"model\": {\"format\": \"onnx\", \"uri\": \"s3://models/a.onnx\"}}, \"status\": {\"phase\": \"Available\"}}";
    let one = parse(text, &context()).expect("right").remove(0);
    assert_eq!(one.resource_version.as_deref(), Some("17"));
    assert_eq!((one.base.clone(), &one.raw), (None, &parse(MINIMAL, &context()).expect("right")[0].raw));
}

/// Replacements in the full manifest, with every error that each must give, one line each.
const WRONG: &[(&str, &str, &[&str])] = &[
    (
        "  replicas:",
        "  replica:",
        &["iris.yaml:16:3: spec.replica: the field \"replica\" is not known here; did you mean \"replicas\"?"],
    ),
    (
        "    uri: file:iris.onnx\n",
        "",
        &["iris.yaml:10:5: spec.model.uri: the field \"uri\" is missing; add `uri: file:iris.onnx`"],
    ),
    (
        "  timeout: 1500ms",
        "  uri: x",
        &["iris.yaml:26:3: spec.uri: the field \"uri\" is not known here; it belongs into spec.model"],
    ),
    (
        "max: 2",
        "max: many",
        &["iris.yaml:16:27: spec.replicas.max: text where a whole number is expected; write a whole number"],
    ),
    (
        "min: 0",
        "min: 3",
        &[
            "iris.yaml:16:27: spec.replicas.max: max (2) is less than min (3); set max to at least 3, or min to at most 2",
            "iris.yaml:17:14: spec.idleAfter: idleAfter has no meaning while 3 replicas are always kept; set spec.replicas to {min: 0}, or leave idleAfter out",
        ],
    ),
    (
        "{min: 0, max: 2}",
        "[1]",
        &[
            "iris.yaml:16:13: spec.replicas: a list where a whole number or a mapping is expected; write a whole number or a mapping",
        ],
    ),
    ("priority: 70", "priority: 101", &["iris.yaml:18:13: spec.priority: 101 is too high; give 1 to 100"]),
    (
        "memory: 512MiB",
        "memory: lots",
        &["iris.yaml:19:23: spec.resources.memory: \"lots\" is not a size; write for example 512MiB, 1.5GiB or 200MB"],
    ),
    (
        "memory: 512MiB",
        "memory: 512",
        &["iris.yaml:19:23: spec.resources.memory: 512 has no unit; write 512MiB if that is meant, 512B for bytes"],
    ),
    ("count: 2", "count: 0", &["iris.yaml:19:54: spec.resources.gpu.count: 0 is too low; give 1 to 64"]),
    (
        "spread: worker",
        "spread: wokrer",
        &["iris.yaml:31:23: spec.placement.spread: \"wokrer\" is not known here; did you mean worker?"],
    ),
    (
        "secondCopy: never",
        "secondCopy: always",
        &["iris.yaml:33:66: spec.scaling.secondCopy: \"always\" is not known here; use one of regular-use, never"],
    ),
    (
        "blue-green",
        "canary",
        &["iris.yaml:24:23: spec.rollout.strategy: \"canary\" is not known here; use one of BlueGreen, blue-green"],
    ),
    ("canary: 10", "canary: 101", &["iris.yaml:24:95: spec.rollout.canary: 101 is too high; give 0 to 100"]),
    (
        "recreate",
        "recreat",
        &["iris.yaml:24:45: spec.rollout.whenFull: \"recreat\" is not known here; did you mean recreate?"],
    ),
    ("version: \"2\"", "version: 2", &["iris.yaml:13:14: spec.model.version: 2 is a number; put it in quotes: \"2\""]),
    (
        "version: \"2\"",
        "version: 1.10",
        &["iris.yaml:13:14: spec.model.version: 1.10 is a number; put it in quotes: \"1.10\""],
    ),
    (
        "datatype: FP32, shape: [-1, 4]",
        "datatype: fp32, shape: [-1, 4]",
        &["iris.yaml:14:34: spec.model.inputs[0].datatype: \"fp32\" is not known here; did you mean FP32?"],
    ),
    (
        "uri: file:iris.onnx",
        "uri: iris.onnx",
        &[
            "iris.yaml:11:10: spec.model.uri: \"iris.onnx\" has no scheme; for a file beside the manifest write file:iris.onnx",
        ],
    ),
    (
        "name: iris\n",
        "name: \"a\\tb\"\n",
        &[
            "iris.yaml:5:9: metadata.name: '\\t' is not allowed in a name: remove this invisible character; write for example \"ab\"",
        ],
    ),
    (
        "name: iris\n",
        "name: iris\n  namespace: Team A\n",
        &[
            "iris.yaml:6:14: metadata.namespace: 'T' is not allowed in a namespace: use lower-case letters, digits and '-', and begin and end with a letter or digit; write for example team-a",
        ],
    ),
    (
        "timeout: 1500ms",
        "timeout: 1500",
        &["iris.yaml:26:12: spec.timeout: 1500 where a duration is expected; write a duration, for example 30s"],
    ),
    (
        "timeout: 1500ms",
        "timeout:",
        &[
            "iris.yaml:26:10: spec.timeout: nothing is given here; write a duration, for example 30s, or remove the line",
        ],
    ),
    (
        "ModelDeployment",
        "Deployment",
        &[
            "iris.yaml:3:7: kind: \"Deployment\" is not a kind that Berth knows; write kind: ModelDeployment or kind: Alias or kind: Function",
        ],
    ),
    (
        "berth.dev/v1",
        "berth.dev/v2",
        &[
            "iris.yaml:2:13: apiVersion: \"berth.dev/v2\" is not an apiVersion that Berth knows; did you mean berth.dev/v1?",
        ],
    ),
    (
        "priority: 70",
        "priority: 0\n  prio: 1",
        &[
            "iris.yaml:18:13: spec.priority: 0 is too low; give 1 to 100",
            "iris.yaml:19:3: spec.prio: the field \"prio\" is not known here; did you mean \"priority\"?",
        ],
    ),
];

#[test]
fn errors_say_where_what_and_what_to_do() {
    for (from, to, errors) in WRONG {
        let text = FULL.replacen(*from, to, 1);
        let found = parse(&text, &context()).expect_err(to);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, *errors, "{from} becomes {to}");
    }
}

#[test]
fn many_documents_are_read_and_their_errors_reported_together() {
    let two = format!("{MINIMAL}---\n---\n{}", MINIMAL.replace("name: a", "name: b"));
    assert_eq!(parse(&two, &context()).expect("two").len(), 2);
    let twice = format!("{MINIMAL}---\n{MINIMAL}");
    let errors = parse(&twice, &context()).expect_err("twice");
    assert!(errors[0].to_string().contains("declared twice, first in line 1"), "{}", errors[0]);
    assert_eq!(errors[0].line, 8);
    let bad = format!("{MINIMAL}---\n{}---\n{}", MINIMAL.replace("onnx,", "Onnx,"), MINIMAL.replace("kind", "kin"));
    let lines: Vec<u32> = parse(&bad, &context()).expect_err("bad").iter().map(|e| e.line).collect();
    assert_eq!(lines, [9, 11, 12]);
}

#[test]
fn formats_are_open_names_with_versions() {
    let format = |written: &str| {
        let text = MINIMAL.replace("format: onnx", &format!("format: {written}"));
        parse(&text, &context()).map(|manifests| manifests[0].spec.model.format.to_string())
    };
    for (written, means) in [
        ("onnx", "onnx"),
        ("sklearn:1", "sklearn:1"),
        ("{name: sklearn, version: \"1\"}", "sklearn:1"),
        ("{name: sklearn, version: 1.5}", "sklearn:1.5"),
        ("{name: tensorrt}", "tensorrt"),
    ] {
        assert_eq!(format(written).expect(written), means);
    }
    for wrong in ["SKLearn", "{version: 1}", "{name: sklearn, version: a b}", "{name: 'sklearn:1', version: 2}"] {
        assert!(format(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_error_is_shown_in_its_line() {
    let errors = parse(&FULL.replace("priority: 70", "priority: 700"), &context()).expect_err("wrong");
    assert_eq!(
        errors[0].render(),
        "error: 700 is too high (spec.priority)\n  --> iris.yaml:18:13\n   |\n18 |   priority: 700\n   |             ^\n  help: give 1 to 100"
    );
    let errors = parse("a: [1,\nb: }", &context()).expect_err("not YAML");
    assert_eq!(errors.len(), 1);
    assert!(errors[0].line > 0 && !errors[0].message.contains("line"), "{}", errors[0]);
}

#[test]
fn the_reference_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manifest.md");
    let made = reference_markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs_err::write(&path, &made).expect("docs/manifest.md is written");
    }
    let kept = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "docs/manifest.md is out of date: UPDATE=1 cargo test -p berth-spec reference");
}

mod properties {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A right manifest of fields that are there or not.
    fn manifest() -> impl Strategy<Value = serde_json::Value> {
        let field = |name: &'static str, values: Vec<serde_json::Value>| {
            proptest::option::of(proptest::sample::select(values)).prop_map(move |value| (name, value))
        };
        let fields = (
            field(
                "replicas",
                vec![
                    json!(0),
                    json!(3),
                    json!({"min": 0}),
                    json!({"min": 1, "max": 4}),
                    json!({"regions": {"eu": 1, "us": {"min": 0, "max": 3}}}),
                ],
            ),
            field("priority", vec![json!(1), json!(100)]),
            field(
                "resources",
                vec![
                    json!({}),
                    json!({"memory": "1.5GiB"}),
                    json!({"memory": 4_194_304, "cpu": 0.25}),
                    json!({"gpu": {"kind": "a"}}),
                ],
            ),
            field("selector", vec![json!({"matchLabels": {"a": "yes", "b": "1"}, "preferred": {"c": "~"}})]),
            field(
                "rollout",
                vec![json!({"strategy": "blue-green", "deadline": "1h30m"}), json!({"whenFull": "wait", "canary": 9})],
            ),
            field("warmup", vec![json!("off"), json!("generated"), json!("required")]),
            field("timeout", vec![json!("500ms"), json!("2d")]),
            field("concurrency", vec![json!({"max": 1}), json!({"queue": 0})]),
            field("batching", vec![json!({"maxRows": 1, "maxDelay": "0"})]),
            field("runtime", vec![json!({"threads": 4}), json!({"isolation": "process"})]),
            field("scaling", vec![json!({"targetRate": 100.5}), json!({"secondCopy": "regular-use"})]),
            field("placement", vec![json!({"spread": "zone"})]),
        );
        ("[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", "[ -~]{0,30}", fields).prop_map(|(name, note, f)| {
            let mut spec = json!({"model": {"format": "onnx", "uri": "file:a b.onnx"}});
            for (field, value) in [f.0, f.1, f.2, f.3, f.4, f.5, f.6, f.7, f.8, f.9, f.10, f.11] {
                if let Some(value) = value {
                    spec[field] = value;
                }
            }
            let metadata = json!({"name": name, "annotations": {"note": note}});
            json!({"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec})
        })
    }

    proptest! {
        #[test]
        fn right_manifests_read_the_same_as_json_and_as_yaml(raw in manifest()) {
            let plain = from_value(&raw, &context()).expect("right");
            prop_assert_eq!(&plain.raw, &raw);
            let json = serde_json::to_string_pretty(&raw).expect("JSON");
            let yaml = serde_saphyr::to_string(&raw).expect("YAML");
            for text in [json, yaml] {
                let read = parse(&text, &context());
                prop_assert_eq!(read, Ok(vec![plain.clone()]), "{}", text);
            }
        }

        #[test]
        fn whatever_comes_is_read_or_refused(text in "\\PC{0,200}|[ \n\t:{}\\[\\]&*!,#|>'\"a-f0-9-]{0,200}") {
            let _ = parse(&text, &context());
        }

        #[test]
        fn a_damaged_manifest_is_read_or_refused_with_a_place(
            at in 0..FULL.len(), length in 0..40_usize, inserted in "[ \n:{}\\[\\]\"'a-z0-9-]{0,12}",
        ) {
            let mut text = FULL.to_owned();
            text.replace_range(at..(at + length).min(FULL.len()), &inserted);
            for error in parse(&text, &context()).err().unwrap_or_default() {
                prop_assert!(!error.message.is_empty() && !error.render().is_empty());
                prop_assert!(error.line > 0, "{}\n{}", error, text);
            }
        }
    }
}

/// The manifest of a card with `more` in it, in a spec with `beside` it.
fn of_card(more: &Value, beside: &Value) -> Result<crate::Spec, Vec<ManifestError>> {
    let function = json!({"module": "src.model", "function": "f"});
    let mut card = json!({
        "schemaVersion": "3.0.0",
        "metadata": {"name": "m", "version": "1.2.3", "description": "a model of a test", "owner": "a@example.com"},
        "runtime": {"framework": "custom", "framework_version": "1.0.0", "python_version": "3.11", "dependencies": []},
        "artifacts": {"storage_type": "http", "model_path": "https://example.com/model.bin"},
        "code": {"repository": "https://example.com/m.git", "path": "src/", "ref": "v1"},
        "preprocessing": function, "postprocessing": function,
        "interface": {"input_schema": {}, "output_schema": {}},
    });
    let merge = |to: &mut Value, from: &Value| {
        from.as_object().expect("fields").iter().for_each(|(key, value)| to[key] = value.clone());
    };
    merge(&mut card, more);
    let pinned = json!({
        "repository": "https://example.com/m.git", "ref": "v1", "commit": "0".repeat(40), "codeCommit": "0".repeat(40),
        "card": card,
    });
    let mut spec = json!({"model": {"format": "python", "card": pinned}});
    merge(&mut spec, beside);
    let document =
        json!({"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "m"}, "spec": spec});
    from_value(&document, &ParseContext { file: "a test".to_owned(), base: None, ..ParseContext::default() })
        .map(|manifest| manifest.spec)
}

#[test]
fn python_always_has_a_process_of_its_own() {
    let isolated = |level: &str| of_card(&json!({}), &json!({"runtime": {"isolation": level}}));
    assert!(isolated("process").is_ok() && isolated("sandbox").is_ok());
    let errors = isolated("none").expect_err("inside of the worker");
    assert_eq!(errors[0].path, "spec.runtime.isolation");
}

#[test]
fn a_card_says_how_many_requests_go_together_where_the_deployment_does_not() {
    let rows = |batch_size: Value, beside: Value| {
        let interface = json!({"interface": {"input_schema": {}, "output_schema": {}, "batch_size": batch_size}});
        of_card(&interface, &beside).expect("a manifest").batching.max_rows
    };
    let both = rows(json!(512), json!({"batching": {"maxRows": 8}}));
    assert_eq!([rows(Value::Null, json!({})), rows(json!(512), json!({})), both], [1, 512, 8]);
}

#[test]
fn a_card_says_what_a_replica_needs_where_the_deployment_does_not() {
    let needs = json!({"resources": {"cpu": 0.1, "memory": "512Mi", "gpu": 2, "gpu_type": "T4"}});
    let claim = |beside: Value| {
        let spec = of_card(&needs, &beside).expect("a manifest");
        (spec.memory, spec.cpu, spec.gpu.clone().map(|gpu| (gpu.count, gpu.kind)))
    };
    let t4 = Some((2, Some("t4".to_owned())));
    assert_eq!(claim(json!({})), (Some(ByteSize::mib(512)), Some(0.1), t4.clone()));
    assert_eq!(claim(json!({"resources": {"memory": "2GiB"}})), (Some(ByteSize::gib(2)), Some(0.1), t4));
    let own = claim(json!({"resources": {"cpu": 4, "gpu": {"count": 1}}}));
    assert_eq!(own, (Some(ByteSize::mib(512)), Some(4.0), Some((1, None))));
    for (bad, said) in [
        (json!({"cpu": 1, "memory": "4G"}), "resources.memory of the card is \"4G\""),
        (json!({"cpu": 1, "memory": "0Mi"}), "resources.memory of the card is \"0Mi\""),
        (json!({"cpu": -1, "memory": "4Gi"}), "resources.cpu of the card is -1"),
        (json!({"cpu": 1e300, "memory": "4Gi"}), "resources.cpu of the card is inf"),
        (json!({"cpu": 1, "memory": "4Gi", "gpu": 65}), "resources.gpu of the card is 65"),
    ] {
        let errors = of_card(&json!({"resources": bad}), &json!({})).expect_err("too much, or no size");
        assert_eq!([(errors[0].path.as_str(), errors[0].message.as_str())], [("spec.model.card", said)]);
    }
}

#[test]
fn a_size_is_shown_as_people_write_it() {
    for (written, shown) in
        [("512Mi", "512MiB"), ("536870912", "512MiB"), ("1.5GiB", "1536MiB"), ("200MB", "200000000")]
    {
        let manifest = json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "m"},
            "spec": {"model": {"format": "onnx", "uri": "https://example.com/m.onnx"}, "resources": {"memory": written}},
        });
        assert_eq!(with_defaults(&manifest).expect("a manifest")["spec"]["resources"]["memory"], shown, "{written}");
    }
}

/// The model of a format with an environment, or its problems.
fn with_environment(format: &str, environment: &Value) -> Result<crate::Spec, Vec<ManifestError>> {
    let model = json!({"format": format, "uri": "s3://models/m/", "environment": environment});
    let document = json!({
        "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "m"}, "spec": {"model": model},
    });
    from_value(&document, &ParseContext { file: "a test".to_owned(), base: None, ..ParseContext::default() })
        .map(|manifest| manifest.spec)
}

#[test]
fn packages_are_declared_or_in_the_artifact_or_usual() {
    let runtime = |format: &str, environment: Value| {
        let spec = with_environment(format, &environment).expect("a manifest");
        let card = spec.model.card.clone().expect("a card");
        let own = card.own_requirements().map(str::to_owned);
        (card.card.runtime.dependencies.clone(), own, card.card.runtime.python_version.clone())
    };
    let (packages, own, python) = runtime("sklearn", json!({}));
    assert!(packages[0].starts_with("scikit-learn==") && own.is_none() && python == "3.11", "{packages:?}");
    let pins = ["a[x]==1.0rc1+cpu", "b==1!2.0.post1 ; python_version >= '3.12'", "b==3 ; python_version < '3.12'"];
    let (packages, own, python) = runtime("pytorch", json!({"python": "3.12", "packages": pins}));
    assert_eq!((packages.as_slice(), own, python.as_str()), (&pins.map(str::to_owned)[..], None, "3.12"));
    let (packages, own, _) = runtime("sklearn", json!({"requirements": "env/requirements.lock"}));
    assert_eq!((packages.len(), own.as_deref()), (0, Some("env/requirements.lock")), "they win over the usual ones");
    assert_eq!(runtime("mlflow", json!({})).1.as_deref(), Some("requirements.txt"), "MLflow writes it");
    assert_eq!(runtime("mlflow", json!({"packages": ["a==1"]})).1, None, "what is declared wins over the folder's own");
    let revision = |environment: Value| {
        let spec = with_environment("mlflow", &environment).expect("a manifest");
        spec.model.card.as_ref().map(|card| card.content())
    };
    for other in [json!({"requirements": "other.txt"}), json!({"python": "3.12"}), json!({"packages": ["a==1"]})] {
        assert_ne!(revision(json!({})), revision(other), "another environment, another revision");
    }
}

#[test]
fn an_environment_is_refused_where_a_worker_would_refuse_it() {
    let packages = |list: &[&str]| json!({"packages": list});
    let many: Vec<String> = (0..501).map(|n| format!("p{n}==1")).collect();
    let long = format!("a==1 ; python_version > '{}'", "3".repeat(500));
    for (format, environment, path, said) in [
        ("onnx", json!({}), "", "an environment is for sklearn"),
        ("pytorch", json!({}), ".packages", "which packages it needs"),
        ("sklearn", json!({"python": "3.7"}), ".python", "no version of Python"),
        ("sklearn", json!({"python": "--with x"}), ".python", "from 3.8 on"),
        ("sklearn", packages(&["scikit-learn"]), ".packages", "is not pinned"),
        ("sklearn", packages(&["-r x==1"]), ".packages", "lines of that file"),
        ("sklearn", packages(&["--index-url=https://h/?a==1"]), ".packages", "--package-index"),
        ("sklearn", packages(&["a @ https://h/a.whl#a==1"]), ".packages", "NAME==VERSION"),
        ("sklearn", packages(&["./a==1"]), ".packages", "is not pinned"),
        ("sklearn", packages(&["a==1.*"]), ".packages", "is not pinned"),
        ("sklearn", packages(&["a==1\n--pre"]), ".packages", "is not pinned"),
        ("sklearn", packages(&[long.as_str()]), ".packages", "is not pinned"),
        ("sklearn", packages(&["Num_Py==1", "num-py==2"]), ".packages", "num-py is pinned to 1 and to 2"),
        ("sklearn", json!({"packages": many}), ".packages", "501 packages are too many"),
        ("sklearn", json!({"packages": ["a==1"], "requirements": "r.txt"}), ".requirements", "leave packages or"),
        ("sklearn", json!({"requirements": "../r.txt"}), ".requirements", "no path in the artifact"),
        ("sklearn", json!({"requirements": "/etc/r.txt"}), ".requirements", "no path in the artifact"),
        ("sklearn", json!({"requirements": ""}), ".requirements", "no path in the artifact"),
    ] {
        let errors = with_environment(format, &environment).expect_err(said);
        let found = errors.iter().find(|error| error.path == format!("spec.model.environment{path}"));
        let found = found.unwrap_or_else(|| panic!("{environment}: {errors:#?}"));
        assert!(found.message.contains(said) || found.remedy.contains(said), "{environment}: {found}");
    }
}
