//! The two lines of a platform team's manual, verbatim, and mistakes in them; the table of fields; the way from manifests and back.

use berth_spec::{
    dialect::etcd_v1alpha1::DIALECT,
    manifest::{
        Manifest, ParseContext, parse_all,
        raw::{
            FunctionAuthLevel, FunctionBundler, FunctionModel, FunctionPlatform, FunctionType, HostPort,
            RawFunctionBuild, RawFunctionLimits, RawFunctionRuntime, RawFunctionSpec, RawFunctionTarget, RawNetwork,
            Whole,
        },
    },
};
use proptest::{option::of, prelude::*, sample::select};

use super::*;

const KERAS: &str = r#"{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{"name":"sentiment-analyzer","uid":"a1b2c3d4-e5f6-7890-1234-567890abcdef"},"spec":{"type":"keras","sourceUri":"azure-blob://artifacts/models/sentiment-analyzer/v1.2.0/src.zip","entrypoint":"handler.predict","runtime":{"pythonVersion":"3.9"},"target":{"platform":"azure-function","resourceGroup":"ml-prod-rg","appName":"sentiment-analyzer-prod"}},"status":{"phase":"Pending","observedGeneration":0}}"#;
const TFJS: &str = r#"{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{"name":"image-classifier-js","uid":"b2c3d4e5-f6a7-8901-2345-67890abcdef1"},"spec":{"type":"tfjs","sourceUri":"azure-blob://artifacts/models/image-classifier-js/v0.8.1/src.zip","entrypoint":"dist/bundle.handler","runtime":{"nodeVersion":"18"},"build":{"bundler":"rollup","configFile":"rollup.config.js"},"target":{"platform":"azure-function","resourceGroup":"ml-edge-rg","appName":"image-classifier-js-prod"}},"status":{"phase":"Pending","observedGeneration":0}}"#;

fn read(key: &str, text: &str) -> Declared {
    Declared::read(key, text.as_bytes(), Rev(1))
}

#[test]
fn both_examples_are_read() {
    let keras = read("sentiment-analyzer", KERAS);
    let spec = keras.spec.expect("a spec");
    assert_eq!((spec.kind.as_str(), spec.language, spec.version.as_deref()), ("keras", Language::Python, Some("3.9")));
    assert_eq!((spec.entrypoint.module.as_str(), spec.entrypoint.function.as_str()), ("handler", "predict"));
    let blob = "models/sentiment-analyzer/v1.2.0/src.zip".to_owned();
    assert_eq!(spec.source, CodeUri::AzureBlob { container: "artifacts".to_owned(), blob });
    assert_eq!((keras.identity.generation, keras.unknown.len(), keras.writable), (None, 0, true));
    let tfjs = read("image-classifier-js", TFJS).spec.expect("a spec");
    assert_eq!(tfjs.bundler, Some(Bundler::Rollup { config: "rollup.config.js".to_owned() }));
    assert_eq!((tfjs.entrypoint.module.as_str(), tfjs.entrypoint.function.as_str()), ("dist/bundle", "handler"));
    let app = AzureApp { group: "ml-edge-rg".to_owned(), app: "image-classifier-js-prod".to_owned() };
    assert_eq!(tfjs.platform, Platform::Azure(app));
}

#[test]
fn a_namespace_is_a_part_of_the_key() {
    let object = |more: &str| KERAS.replacen(r#""uid""#, &format!(r#"{more}"uid""#), 1);
    let (none, team, default) = (object(""), object(r#""namespace":"team","#), object(r#""namespace":"default","#));
    for (key, text, wanted) in [
        ("sentiment-analyzer", &none, Ok("default")),
        ("sentiment-analyzer", &default, Ok("default")),
        ("team/sentiment-analyzer", &none, Ok("team")),
        ("team/sentiment-analyzer", &team, Ok("team")),
        ("sentiment-analyzer", &team, Err("metadata.namespace is \"team\", but the key \"sentiment-analyzer\" is in")),
        ("team/sentiment-analyzer", &default, Err("metadata.namespace is \"default\", but the key")),
        ("default/sentiment-analyzer", &none, Err("leave default/ out of the key")),
        ("Team/sentiment-analyzer", &none, Err("\"Team\" is not a namespace")),
        ("/sentiment-analyzer", &none, Err("\"\" is not a namespace")),
        ("a/b/sentiment-analyzer", &none, Err("the name \"b/sentiment-analyzer\" is invalid")),
        ("team/other", &none, Err("the key ends with \"other\"")),
    ] {
        match (read(key, text).spec, wanted) {
            (Ok(spec), Ok(namespace)) => {
                let name = (spec.name.namespace(), spec.name.name(), spec.name.as_str());
                assert_eq!(name, (namespace, "sentiment-analyzer", key));
            }
            (Err(message), Err(says)) => assert!(message.contains(says), "{key}: {message}"),
            (other, _) => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn keys_are_paths_and_files_of_their_own() {
    for (key, path, stem) in [
        ("words", "/functions/words", "words"),
        ("team/words", "/namespaces/team/functions/words", "team%2Fwords"),
        // A key may be any text; it leads out of no folder.
        ("../words", "/namespaces/../functions/words", "..%2Fwords"),
        // It is not the function of a team.
        ("team%2Fwords", "/functions/team%2Fwords", "team%252Fwords"),
        ("team%/25", "/namespaces/team%/functions/25", "team%25%2F25"),
    ] {
        assert_eq!((path_of(key).as_str(), file_stem(key).as_str()), (path, stem));
        assert_eq!(key_of_stem(stem), key);
    }
}

#[test]
fn a_spec_is_read_again_from_its_text() {
    // A reader that is not exact changes the last digit of these.
    let floats = "[51.248178375505404,-36.573994842753436,2.638344616030823e-256]";
    let more = format!(
        r#""env":{{"A":"1"}},"limits":{{"concurrency":3}},"probe":{{"x":{floats}}},"sourceSha256":"{}","runtime""#,
        "0a".repeat(32)
    );
    let full = KERAS.replacen(r#""runtime""#, &more, 1);
    for (key, text) in [("sentiment-analyzer", full.as_str()), ("image-classifier-js", TFJS)] {
        let declared = read(key, text);
        let spec = declared.spec.expect("a spec");
        assert_eq!(declared.text.contains(floats), spec.probe.is_some(), "{}", declared.text);
        assert_eq!(FunctionSpec::reread(key, &declared.text), Ok(Arc::unwrap_or_clone(spec)));
    }
    let wrong = read("sentiment-analyzer", &full.replacen(r#""concurrency":3"#, r#""concurrency":0"#, 1));
    let message = FunctionSpec::reread("sentiment-analyzer", &wrong.text).expect_err("no request at once");
    assert_eq!(wrong.spec, Err(message), "as it was told at first");
    assert!(FunctionSpec::reread("f", "").is_err());
}

#[test]
fn mistakes_are_named() {
    for (from, to, says) in [
        (r#""type":"keras""#, r#""type":"pytorch""#, "spec.type \"pytorch\" is unknown: use keras"),
        (r#""type":"keras","#, "", "spec.type is missing"),
        (r#""handler.predict""#, r#""handler""#, "spec.entrypoint \"handler\": write MODULE.FUNCTION"),
        (r#""handler.predict""#, r#""../x.predict""#, "names no function inside the code"),
        (r#""3.9""#, "3.9", "spec.runtime.pythonVersion must be a string, not 3.9"),
        (r#""3.9""#, r#""3""#, "is no version"),
        ("azure-blob:", "ftp:", "the scheme \"ftp\" is unknown: write file:PATH"),
        (r#""resourceGroup":"ml-prod-rg","#, "", "spec.target.resourceGroup is missing"),
        (r#""azure-function""#, r#""lambda""#, "spec.target.platform \"lambda\" is unknown"),
        (r#""name":"sentiment-analyzer""#, r#""name":"other""#, "the key ends with \"sentiment-analyzer\""),
        ("v1alpha1", "v9", "apiVersion \"v9\" is unknown"),
        (r#""spec":{"#, r#""spec":[],"x":{"#, "spec must be an object, not a list; spec is missing"),
        ("\"runtime\"", "\"network\":{\"hosts\":\"a:1\"},\"runtime\"", "spec.network.hosts must be a list: write"),
        ("\"runtime\"", "\"network\":{\"hosts\":[1]},\"runtime\"", "spec.network.hosts must be a list of strings"),
        ("\"runtime\"", "\"network\":{\"hosts\":[\"a\"]},\"runtime\"", "spec.network.hosts: \"a\" is not a host"),
        ("{\"api", "[{\"api", "the value is not JSON"),
    ] {
        let declared = read("sentiment-analyzer", &KERAS.replacen(from, to, 1));
        let message = declared.spec.expect_err(to);
        assert!(message.contains(says), "{to}: {message}");
    }
    let typo = read("sentiment-analyzer", &KERAS.replacen("\"runtime\"", "\"runtimes\"", 1));
    assert_eq!(typo.unknown, ["spec.runtimes"]);
}

#[test]
fn all_mistakes_are_told_at_once_and_those_beyond_are_counted() {
    let spec = |spec: &str| {
        let text =
            format!(r#"{{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{{"name":"f"}},"spec":{spec}}}"#);
        read("f", &text)
    };
    for bare in ["{}", r#"{"type":"pytorch","runtime":{"pythonVersion":"3.9"},"build":{}}"#] {
        let message = spec(bare).spec.expect_err(bare);
        for field in
            ["spec.type", "spec.sourceUri is missing", "spec.entrypoint is missing", "spec.target.platform is missing"]
        {
            assert!(message.contains(field), "{field}: {message}");
        }
        assert_eq!(message.matches("; ").count(), 3, "{message}");
    }
    let names: Vec<String> = (0..11).map(|number| format!("\"{number}\":1")).collect();
    let many = spec(&format!(r#"{{"type":"keras","env":{{{}}},{}}}"#, names.join(","), names.join(",")));
    assert_eq!(many.unknown.last().map(String::as_str), Some("and 3 more"));
    let message = many.spec.expect_err("env and more is wrong");
    assert!(message.ends_with("; and 6 more"), "{message}");
}

#[test]
fn the_entry_in_azure_is_a_part_of_the_target() {
    let with = |text: &str, more: &str| {
        let text = text.replacen(r#""platform":"azure-function""#, more, 1);
        let key = if text.contains("image") { "image-classifier-js" } else { "sentiment-analyzer" };
        read(key, &text).spec.map(|spec| (spec.entry.model, spec.entry.auth))
    };
    let azure = |more: &str| format!(r#""platform":"azure-function",{more}"#);
    for (text, more, wanted) in [
        (KERAS, r#""platform":"azure-function""#.to_owned(), (ProgrammingModel::V2, AuthLevel::Anonymous)),
        (KERAS, azure(r#""programmingModel":"v1""#), (ProgrammingModel::V1, AuthLevel::Anonymous)),
        (
            KERAS,
            azure(r#""programmingModel":"v2","authLevel":"function""#),
            (ProgrammingModel::V2, AuthLevel::Function),
        ),
        (TFJS, azure(r#""authLevel":"function""#), (ProgrammingModel::V2, AuthLevel::Function)),
        (
            KERAS,
            r#""platform":"local","authLevel":"anonymous""#.to_owned(),
            (ProgrammingModel::V2, AuthLevel::Anonymous),
        ),
    ] {
        assert_eq!(with(text, &more), Ok(wanted), "{more}");
    }
    for (text, more, says) in [
        (KERAS, azure(r#""programmingModel":"v3""#), "spec.target.programmingModel \"v3\" is unknown"),
        (TFJS, azure(r#""programmingModel":"v2""#), "spec.target.programmingModel belongs to Python"),
        (KERAS, azure(r#""authLevel":"admin""#), "spec.target.authLevel \"admin\" is unknown"),
        (KERAS, r#""platform":"local","authLevel":"function""#.to_owned(), "belongs to azure-function"),
    ] {
        let message = with(text, &more).expect_err(&more);
        assert!(message.contains(says), "{more}: {message}");
    }
}

#[test]
fn the_status_is_no_part_of_the_identity() {
    let one = read("sentiment-analyzer", KERAS).identity;
    assert_eq!(one, read("sentiment-analyzer", &KERAS.replace("Pending", "Succeeded")).identity);
    assert_ne!(one, read("sentiment-analyzer", &KERAS.replace("v1.2.0", "v1.2.1")).identity);
    let counted = read("sentiment-analyzer", &KERAS.replace("\"uid\"", "\"generation\":7,\"uid\"")).identity;
    assert_eq!((counted.generation, &counted.digest), (Some(7), &one.digest));
}

#[test]
fn places_of_code() {
    let good = "0123456789abcdef0123456789abcdef01234567";
    for (text, fine) in [
        ("file:/a/b.zip", true),
        ("file:///a/b", true),
        ("file:b.zip", false),
        ("https://h/x.tar.gz?sig=1", true),
        ("https://me:secret@h/x.zip", false),
        ("s3://b/k.zip", true),
        ("s3://b", false),
        ("azure-blob:///x", false),
        (&format!("git+https://h/r.git@{good}"), true),
        ("git+https://h/r.git@main", false),
        ("x.zip", false),
    ] {
        assert_eq!(CodeUri::parse(text).is_ok(), fine, "{text}");
    }
    assert_eq!(CodeUri::parse("https://h/x.zip?sig=1").expect("a URI").to_string(), "https://h/x.zip");
}

#[test]
fn the_table_of_the_dialect_has_the_fields_that_are_read() {
    let unknown = |path: &str| {
        let mut object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "f"}, "spec": {"type": "keras"},
        });
        let mut at = &mut object;
        for part in path.split('.') {
            at = &mut at[part];
        }
        *at = json!(1);
        read("f", &object.to_string()).unknown
    };
    let rows = || DIALECT.fields.iter().map(|field| field.path).filter(|path| path.starts_with("spec."));
    for path in rows() {
        assert_eq!(unknown(path), Vec::<String>::new(), "{path} is not read");
    }
    for path in ["spec.other", "spec.runtime.other", "spec.build.other", "spec.target.other", "spec.limits.other"] {
        assert_eq!(unknown(path), [path]);
    }
    for field in spec::FIELDS {
        let path = format!("spec.{field}");
        let is_of = |row: &str| row.strip_prefix(&path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        assert!(rows().any(is_of), "{path} has no row");
    }
}

#[test]
fn memory_has_two_spellings() {
    for (limits, mib) in
        [(r#"{"memoryMiB":64}"#, 64), (r#"{"memoryMib":65}"#, 65), (r#"{"memoryMib":65,"memoryMiB":64}"#, 64)]
    {
        let text = KERAS.replacen(r#""runtime""#, &format!(r#""limits":{limits},"runtime""#), 1);
        let declared = read("sentiment-analyzer", &text);
        assert_eq!((declared.spec.expect("a spec").limits.memory_mib, declared.unknown.len()), (mib, 0), "{limits}");
    }
    let wrong = KERAS.replacen(r#""runtime""#, r#""limits":{"memoryMib":1},"runtime""#, 1);
    let message = read("sentiment-analyzer", &wrong).spec.expect_err("1 MiB holds nothing");
    assert!(message.starts_with("spec.limits.memoryMib must be a whole number from 32"), "{message}");
}

prop_compose! {
    fn limits()(
        (seconds, concurrency) in (of(1_u32..=600), of(1_u32..=1_000)),
        (idle, memory) in (of(1_u32..=86_400), of(32_u32..=1_048_576)),
    ) -> RawFunctionLimits {
        RawFunctionLimits {
            timeout_seconds: seconds.map(Whole::constant),
            concurrency: concurrency.map(Whole::constant),
            idle_seconds: idle.map(Whole::constant),
            memory_mib: memory.map(Whole::constant),
            memory_mib_also: None,
        }
    }
}

prop_compose! {
    fn function()(
        (is_python, is_versioned, is_built) in any::<(bool, bool, bool)>(),
        source in select(vec![
            "file:/srv/a.zip",
            "https://h/x.tar.gz?sig=1",
            "s3://b/k.zip",
            "azure-blob://c/a/b.zip",
            "git+https://h/r.git@0123456789abcdef0123456789abcdef01234567",
        ]),
        sha256 in of("[0-9a-f]{64}"),
        platform in select(vec![FunctionPlatform::Local, FunctionPlatform::AzureFunction, FunctionPlatform::Replica]),
        bundler in of(select(vec![FunctionBundler::Rollup, FunctionBundler::Esbuild, FunctionBundler::None])),
        (model, auth) in (
            of(select(vec![FunctionModel::V1, FunctionModel::V2])),
            of(select(vec![FunctionAuthLevel::Anonymous, FunctionAuthLevel::Function])),
        ),
        (replicas, host) in (of(1_u32..=1_000), of(select(vec!["api.example.com:443", "10.0.0.5:5432"]))),
        env in proptest::collection::btree_map("[A-Z_][A-Z0-9_]{0,6}", "[ -~]{0,9}", 0..3),
        limits in of(limits()),
        probe in of(select(vec![json!({"text": "one"}), json!([1, 2.5]), json!("")])),
    ) -> RawFunctionSpec {
        // Workers run Python, without variables.
        let is_replica = platform == FunctionPlatform::Replica;
        let is_python = is_python || is_replica;
        let is_azure = platform == FunctionPlatform::AzureFunction;
        let version = |wanted: bool, text: &str| (wanted && is_versioned).then(|| text.to_owned());
        RawFunctionSpec {
            r#type: if is_python { FunctionType::Keras } else { FunctionType::Tfjs },
            source_uri: source.to_owned(),
            source_sha256: sha256,
            entrypoint: if is_python { "src.handler.predict" } else { "dist/bundle.handler" }.to_owned(),
            runtime: Some(RawFunctionRuntime {
                python_version: version(is_python, "3.11"),
                node_version: version(!is_python, "20"),
            }),
            build: (is_built && !is_python).then(|| RawFunctionBuild {
                bundler,
                config_file: Some("build/rollup.config.js".to_owned()),
            }),
            target: RawFunctionTarget {
                platform,
                resource_group: is_azure.then(|| "ml-prod-rg".to_owned()),
                app_name: is_azure.then(|| "sentiment-prod".to_owned()),
                programming_model: model.filter(|_| is_python),
                auth_level: auth.filter(|_| is_azure),
                replicas: replicas.filter(|_| is_replica).map(Whole::constant),
            },
            env: if is_replica { BTreeMap::new() } else { env },
            network: host.map(|host| RawNetwork { hosts: vec![HostPort::read(host).expect("a host")] }),
            limits,
            probe,
        }
    }
}

proptest! {
    #[test]
    fn a_function_is_the_same_in_a_manifest_and_in_etcd(raw in function()) {
        let wanted = serde_json::to_value(&raw).expect("JSON");
        let object = |version: &str, kind: &str| {
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": "f"}, "spec": wanted}).to_string()
        };
        let manifest = object("berth.dev/v1", "Function");
        let parsed = parse_all(&manifest, &ParseContext::default());
        let Ok([Manifest::Function(function)]) = parsed.as_deref() else { panic!("no function: {parsed:?}") };
        prop_assert_eq!(&function.spec, &wanted);
        prop_assert_eq!(check(function), Ok(()));
        let (ours, theirs) = (read("f", &manifest), read("f", &object("v1alpha1", "ModelDeployment")));
        prop_assert_eq!(&ours.spec, &theirs.spec);
        prop_assert_eq!(&ours.unknown, &Vec::<String>::new());
        let spec = ours.spec.expect("a spec");
        prop_assert_eq!(FunctionSpec::reread("f", &ours.text), Ok(Arc::unwrap_or_clone(Arc::clone(&spec))));
        let memory = raw.limits.as_ref().and_then(|limits| limits.memory_mib).map(|mib| u64::from(mib.get()));
        prop_assert_eq!(spec.named_limits.memory_mib, memory);
        prop_assert_eq!(serde_json::from_str::<RawFunctionSpec>(&ours.text).ok(), Some(raw), "and back");
    }
}
