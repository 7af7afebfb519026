//! Forms that authors may write, and their meaning.

use berth_spec::{FailureCategory, InferError, deployment::Warmup};
use berth_worker::runtime::Validation;
use serde_json::{Value, json};

use super::card::{Card, DOUBLES};

#[tokio::test(flavor = "multi_thread")]
async fn a_card_answers_documents() {
    let running = Card::new(DOUBLES).start().expect("it loads");
    assert_eq!(running.call(json!({"x": 21})).await.expect("an answer"), json!({"y": 42}));
    assert!(running.memory.0 > 4 << 20, "{}", running.memory);
    let now = running.model.statistics().memory;
    let metrics = running.metrics();
    assert!(
        metrics.contains(&format!("worker_model_memory_bytes{{namespace=\"default\",model=\"m\"}} {now}")),
        "{now} in {metrics}"
    );
    assert_eq!(running.note, None);
    assert_eq!(running.model.platform(), "berth_python");
}

/// A replica sees the GPUs that it was given, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_sees_its_own_gpus() {
    const TELLS: &str = "
import os
def load(path):
    return lambda x: os.environ['CUDA_VISIBLE_DEVICES']
def pre(request, config):
    return request['x']
def post(output, config):
    return {'y': output}
";
    let text = json!({"type": "object", "required": ["y"], "properties": {"y": {"type": "string"}}});
    for (devices, seen) in [(vec![], ""), (vec!["GPU-a"], "GPU-a"), (vec!["GPU-a", "GPU-b"], "GPU-a,GPU-b")] {
        let mut card = Card::new(TELLS).with("/interface/output_schema", text.clone());
        card.devices = devices.into_iter().map(Into::into).collect();
        let running = card.start().expect("it loads");
        assert_eq!(running.call(json!({"x": 1})).await.expect("an answer"), json!({"y": seen}));
    }
}

/// Signatures of functions, and what a request of 3 with the config `{"add": 4}` becomes.
#[tokio::test(flavor = "multi_thread")]
async fn functions_take_what_their_parameters_say() {
    let cases: &[(&str, f64)] = &[
        ("def pre(request, config): return request['x'] + config['add']", 7.0),
        ("def pre(config, request): return request['x'] + config['add']", 7.0),
        ("def pre(data, cfg): return data['x'] + cfg['add']", 7.0),
        ("def pre(anything, whatever): return anything['x'] + whatever['add']", 7.0),
        ("def pre(anything): return anything['x']", 3.0),
        ("def pre(*args): return args[0]['x']", 3.0),
        ("def pre(**kwargs): return kwargs['request']['x'] + kwargs['add']", 7.0),
        ("def pre(request, **options): return request['x'] + options['add']", 7.0),
        ("def pre(request, add, unused=9): return request['x'] + add", 7.0),
        ("def pre(*, request, config): return request['x'] + config['add']", 7.0),
        ("def pre(*, document): return document['x']", 3.0),
        ("def pre(request, /, config=None): return request['x'] + config['add']", 7.0),
        ("def pre(request=None): return request['x']", 3.0),
        ("class Pre:\n    def __call__(self, request, config): return request['x'] + config['add']\npre = Pre()", 7.0),
        (
            "import functools\ndef base(n, request, config): return request['x'] + n\npre = functools.partial(base, 1)",
            4.0,
        ),
        ("import json\npre = lambda request: json.loads(json.dumps(request))['x']", 3.0),
    ];
    for (source, expected) in cases {
        let source =
            format!("def load(path): return lambda x: x\ndef post(output): return {{'y': output}}\n{source}\n");
        let card = Card::new(&source).with("/preprocessing/config", json!({"add": 4}));
        let running = card.start().unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(running.call(json!({"x": 3})).await.expect(&source)["y"].as_f64(), Some(*expected), "{source}");
    }
}

#[test]
fn functions_that_cannot_be_called_are_refused() {
    let cases: &[(&str, &str)] = &[
        ("def pre(request, config, extra): pass", "nothing is known that 'extra' could take"),
        ("def pre(): pass", "no parameter takes the request"),
        ("def pre(config): pass", "no parameter takes the request: expected (request, config)"),
        ("def pre(request, *, other): pass", "nothing is known that 'other' could take"),
        ("async def pre(request): pass", "is async"),
        ("class pre: pass", "is a class"),
        ("pre = 3", "is a int, which cannot be called"),
        ("", "module src.model has no 'pre' (preprocessing.function): it has `load`, `post`"),
    ];
    for (source, why) in cases {
        let source =
            format!("def load(path): return lambda x: x\ndef post(output): return {{'y': output}}\n{source}\n");
        let error = Card::new(&source).fails();
        assert_eq!(error.category, FailureCategory::Code, "{source}: {error}");
        assert!(error.message.contains(why), "{source}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn loading_functions_are_found_and_called() {
    let rest = "\ndef pre(request): return request['x']\ndef post(output): return {'y': output}\n";
    for source in [
        "def load(path):\n    assert open(path).read() == 'weights'\n    return lambda x: x",
        "def load(path, config):\n    assert config == {}\n    return lambda x: x",
        "def load(model_path, config_path):\n    assert config_path is None\n    return lambda x: x",
        "def load_model(artifact): return lambda x: x",
        "class Model:\n    def __init__(self, path): pass\n    def predict(self, x): return x",
        "class Any:\n    def predict(self, x, verbose=True): return x\ndef load(path): return Any()",
        "def load(path): return lambda a, b=2: a",
        "def load(path):\n    assert path.endswith('/model.bin'), path\n    return abs",
    ] {
        let running = Card::new(&format!("{source}{rest}")).start().unwrap_or_else(|error| panic!("{source}: {error}"));
        assert_eq!(running.call(json!({"x": 3})).await.expect(source)["y"].as_f64(), Some(3.0), "{source}");
    }
    for (source, why) in [
        ("", "has no loading function: expected `def load(path)`"),
        ("def load(path): return None", "returned None"),
        ("def load(path): return 3", "returned a int, which has no `predict` and cannot be called"),
        ("def load(path, config, more): pass", "nothing is known that 'more' could take"),
    ] {
        let error = Card::new(&format!("{source}{rest}")).fails();
        assert!(error.category == FailureCategory::Code && error.message.contains(why), "{source}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_several_inputs_gets_them_by_name() {
    let source = "
def load(path):
    return lambda a, b: a - b
def pre(request): return {'b': 1, 'a': request['x']}
def post(output): return {'y': output}
";
    let running = Card::new(source).start().expect("it loads");
    assert_eq!(running.call(json!({"x": 3})).await.expect("an answer"), json!({"y": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn marked_functions_take_batches_and_a_bad_request_fails_alone() {
    let source = "
import berth
def load(path):
    @berth.batched
    def predict(items):
        if 13 in items: raise ValueError('unlucky')
        return [(item, len(items)) for item in items]
    return predict
def pre(requests): return [request['x'] for request in requests]
def post(output): return {'y': output[0], 'together': output[1]}
";
    let card = Card::new(source).with("/interface/batch_size", json!(8));
    let running = card.start().expect("it loads");
    let calls = (10..16).map(|x| running.call(json!({"x": x})));
    let answers: Vec<Result<Value, InferError>> = futures::future::join_all(calls).await;
    for (x, answer) in (10..16).zip(answers) {
        match answer {
            Ok(answer) => assert_eq!(answer["y"], json!(x)),
            Err(InferError::Model(why)) => assert!(x == 13 && why.contains("ValueError: unlucky"), "{x}: {why}"),
            Err(error) => panic!("{x}: {error}"),
        }
    }
}

#[test]
fn a_batch_of_another_length_is_told() {
    let source = "
def load(path): return lambda x: x
def pre(batch): return batch[0]
def post(output): return {'y': output}
";
    let error = Card::new(source).with("/interface/batch_size", json!(8)).fails();
    assert_eq!(error.category, FailureCategory::Validation);
    assert!(error.message.contains("got a list of 1 and returned a dict of 1: return a list"), "{error}");
    assert!(error.message.contains("because its parameter is named 'batch'"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_code_are_told_to_whom_they_concern() {
    let source = "
import berth
def load(path): return lambda x: x
def pre(request):
    if request['x'] == 1: raise berth.RequestError('one is taken', '/x')
    if request['x'] == 2: raise KeyError('two')
    if request['x'] == 3: import sys; sys.exit(3)
    if request['x'] == 7: raise berth.RequestError('seven', ['x', 7])
    if request['x'] == 8: raise ValueError(b'caf\\xe9'.decode('utf-8', 'surrogateescape'))
    if request['x'] == 9: raise KeyboardInterrupt
    return request['x']
def post(output):
    if output == 4: return {'z': output}
    if output == 5: return {'y': float('nan')}
    if output == 6: return {'y': object()}
    return {'y': output}
";
    let running = Card::new(source).start().expect("it loads");
    let error = running.call(json!({"x": 1})).await.expect_err("refused");
    assert!(matches!(&error, InferError::Unprocessable { violations, .. } if violations[0].path == "/x"), "{error:?}");
    let error = running.call(json!({"x": 7})).await.expect_err("refused");
    assert!(
        matches!(&error, InferError::Unprocessable { violations, .. } if violations[0].path == "/x/7"),
        "{error:?}"
    );
    for (x, why) in [
        (8, "preprocessing raised ValueError: caf?"),
        (2, "preprocessing raised KeyError: 'two'"),
        (3, "sys.exit(3)"),
        (9, "preprocessing raised KeyboardInterrupt: (no message)"),
        (4, "the answer is not as interface.output_schema says: (the document): \"y\" is a required property"),
        (5, "the answer is no JSON: ValueError"),
        (6, "the answer is no JSON: TypeError: an answer is JSON, and object is not"),
    ] {
        let error = running.call(json!({"x": x})).await.expect_err(why);
        assert!(matches!(&error, InferError::Model(told) if told.contains(why)), "{x}: {error:?}");
    }
    assert_eq!(running.call(json!({"x": 0})).await.expect("it lives"), json!({"y": 0}));
    let metrics = running.metrics();
    assert!(
        metrics.contains("worker_model_answers_broke_schema_total{namespace=\"default\",model=\"m\"} 1"),
        "{metrics}"
    );
}

#[test]
fn the_validation_inference_runs_all_of_it() {
    let failing = |line: &str| DOUBLES.replace("return {'y': output}", line);
    let error = Card::new(&failing("return {'y': 'text'}")).fails();
    assert_eq!(error.category, FailureCategory::Validation);
    assert!(error.message.contains("output_schema says: /y: \"text\" is not of type"), "{error}");

    let error = Card::new(&failing("raise RuntimeError('no')")).fails();
    assert_eq!(error.category, FailureCategory::Validation);
    let trace = error.trace.expect("a traceback");
    assert!(trace.contains("src/model.py") && trace.ends_with("RuntimeError: no"), "{trace}");
    assert!(!trace.contains("berth/pipeline.py"), "{trace}");

    let given = |text: &str| Card::new(DOUBLES).with_warmup(Warmup::Given(text.into())).start().map(drop);
    assert_eq!(given("{\"x\": 1}"), Ok(()));
    assert_eq!(
        given("{\"inputs\": [{\"name\": \"x\", \"datatype\": \"FP64\", \"shape\": [1], \"data\": [1]}]}"),
        Ok(())
    );
    assert_eq!(given("{\"z\": 1}").map_err(|error| error.category), Err(FailureCategory::Validation));

    let nothing = json!({"type": "object", "required": ["x"], "properties": {"x": {"not": {}}}});
    let error = Card::new(DOUBLES).with("/interface/input_schema", nothing).fails();
    assert!(error.message.contains("`examples`") && error.message.contains("warmup"), "{error}");
}

#[test]
fn code_that_cannot_be_imported_says_why() {
    for (source, category, why) in [
        (
            "import not_there_at_all",
            FailureCategory::Dependencies,
            "imports 'not_there_at_all', which is not installed",
        ),
        (
            "def load(path): import not_there",
            FailureCategory::Dependencies,
            "add the package that has it to runtime.dependencies",
        ),
        (
            "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')",
            FailureCategory::Dependencies,
            "libGL.so.1: cannot open shared object file: No such file or directory; add the package of the operating \
             system that has it to runtime.system_packages",
        ),
        ("def load(path:", FailureCategory::Code, "SyntaxError"),
        ("raise SystemExit(3)", FailureCategory::Code, "SystemExit: 3"),
        ("1/0", FailureCategory::Code, "ZeroDivisionError"),
    ] {
        let error = Card::new(source).fails();
        assert!(error.category == category && error.message.contains(why), "{source}: {error:?}");
    }
    let error = Card::new(DOUBLES).with("/code/entrypoint", json!("src.other")).fails();
    assert!(error.message.contains("there is no module src.other (code.entrypoint)"), "{error}");
    let schema = json!({"type": "nonsense"});
    let error = Card::new(DOUBLES).with("/interface/output_schema", schema).fails();
    assert!(error.message.contains("interface.output_schema is no JSON schema"), "{error}");
}

#[test]
fn a_request_that_is_made_of_the_schema_alone_proves_little() {
    let picky = "
def load(path): return lambda name: {'red': 1}[name]
def pre(request): return request['x']
def post(output): return {'y': output}
";
    let text = json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}});
    let card = Card::new(picky).with("/interface/input_schema", text.clone());
    let validated = |card: Card, warmup: Warmup| card.load().expect("it loads").model.validate(&warmup);
    let validation = validated(card, Warmup::Generated).expect("it may serve");
    assert!(matches!(&validation, Validation::Inconclusive(why) if why.contains("KeyError")), "{validation:?}");

    // The author's own.
    let mut example = text;
    example["examples"] = json!([{"x": "blue"}]);
    let card = Card::new(picky).with("/interface/input_schema", example);
    let error = validated(card, Warmup::Generated).expect_err("the card says that it is answered");
    assert_eq!(error.category, FailureCategory::Validation);
}
