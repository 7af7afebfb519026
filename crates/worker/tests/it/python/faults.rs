//! Faults of processes.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use berth_spec::{FailureCategory, InferError, deployment::Warmup, inference::Shed, residency::Deaths};
use berth_worker::runtime::Health;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::card::{Card, DOUBLES, Running};

fn alive(process: i64) -> bool {
    let status = fs_err::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A zombie is gone; somebody only has to look.
    !matches!(status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()), None | Some('Z' | 'X'))
}

/// Waits for something that others do. The limit is for the case that it never happens.
fn comes_true(what: &str, mut check: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !check() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::yield_now();
    }
}

async fn process(running: &Running) -> i64 {
    let answer = running.call(json!({"x": -1})).await.expect("an answer");
    answer["y"].as_i64().expect("a process id")
}

/// Answers -1 with its process id; sleeps on 7; runs forever on 8.
const PROCESS: &str = "
import os, time
def load(path): return lambda x: x
def pre(request): return request['x']
def post(output):
    if output == -1: return {'y': os.getpid()}
    if output == 7: time.sleep(60)
    return {'y': output}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_under_load_is_started_again() {
    let running = Card::new(PROCESS).start().expect("it loads");
    let first = process(&running).await;
    let (sleeps, waits) = (running.call(json!({"x": 7})), running.call(json!({"x": 1})));
    let (sleeps, (waits, ())) = futures::future::join(sleeps, async {
        // The first is running by then: the process has it, and the other one waits.
        let kill = async {
            tokio::task::yield_now().await;
            kill_process(Pid::from_raw(first as i32).expect("a process"), Signal::KILL).expect("killed");
        };
        futures::future::join(waits, kill).await
    })
    .await;
    for answer in [sleeps, waits] {
        let fine = matches!(&answer, Err(InferError::Lost(_) | InferError::Shed { reason: Shed::Unavailable, .. }));
        assert!(fine, "{answer:?}");
    }
    let mut second = running.call(json!({"x": -1})).await;
    let until = Instant::now() + Duration::from_secs(120);
    while second.is_err() && Instant::now() < until {
        assert!(matches!(second, Err(InferError::Shed { retry_in: Some(_), .. } | InferError::Lost(_))), "{second:?}");
        tokio::task::yield_now().await;
        second = running.call(json!({"x": -1})).await;
    }
    assert_ne!(second.expect("it is back")["y"], json!(first));
    let metrics = running.metrics();
    assert!(metrics.contains("worker_model_process_deaths_total{namespace=\"default\",model=\"m\"} 1"), "{metrics}");
    let Health { memory, deaths, .. } = running.model.health();
    let deaths = deaths.expect("one");
    assert!(memory >= Some(running.memory), "the most that it took: {memory:?}");
    assert_eq!((deaths.count, deaths.in_a_row, deaths.again_at), (1, 1, None), "{deaths:?}");
    assert!(deaths.cause.starts_with("it was killed by signal 9"), "{deaths:?}");
}

/// Waits for the word that a model is so.
async fn told(changes: &mut watch::Receiver<Health>, is: impl Fn(&Deaths) -> bool) -> Deaths {
    let is_so = |health: &Health| health.deaths.as_deref().is_some_and(&is);
    let so = tokio::time::timeout(Duration::from_secs(120), changes.wait_for(is_so)).await;
    let health = so.expect("it is told").expect("the model is there").clone();
    health.deaths.as_deref().expect("it died").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_says_so_until_it_is_up_again() {
    // Once it has died, it loads only when it is let.
    let source = "
import os, time
def load(path):
    while os.path.exists(path + '.died') and not os.path.exists(path + '.let'): time.sleep(0.01)
    return lambda x: (x, path)
def pre(request): return request['x']
def post(output):
    x, path = output
    if x == 1:
        open(path + '.died', 'w').close()
        os._exit(3)
    return {'y': x}
";
    let running = Card::new(source).start().expect("it loads");
    let mut changes = running.model.changes().expect("it has a process");
    let error = running.call(json!({"x": 1})).await.expect_err("it dies");
    assert!(matches!(&error, InferError::Lost(_)), "{error:?}");
    let down = told(&mut changes, |deaths| deaths.again_at.is_some()).await;
    assert_eq!((down.count, down.in_a_row, down.again_at > Some(down.at)), (1, 1, true), "{down:?}");
    assert!(down.cause.starts_with("it ended with code 3"), "{down:?}");
    let refused = running.call(json!({"x": 2})).await.expect_err("it is not up");
    assert!(matches!(&refused, InferError::Shed { reason: Shed::Unavailable, retry_in: Some(_), .. }), "{refused:?}");
    assert_eq!(running.model.health().deaths.as_deref(), Some(&down), "it is loading, and not up");
    fs_err::write(running.folder.path().join("model.bin.let"), "").expect("written");
    let up = told(&mut changes, |deaths| deaths.again_at.is_none()).await;
    assert_eq!(up, Deaths { again_at: None, ..down });
    assert_eq!(running.call(json!({"x": 2})).await.expect("it is up"), json!({"y": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_cannot_be_understood_is_ended_at_once() {
    // It writes to the line itself: an answer to run 2, which is no list of answers.
    let source = "
import os, struct
def load(path): return lambda x: x
def pre(request): return request['x']
def post(output):
    if output == 9:
        line = next(int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and 'socket' in os.readlink('/proc/self/fd/' + fd))
        os.write(line, struct.pack('<IIQ', 19, 2, 0) + b'{}')
        import time; time.sleep(60)
    return {'y': output}
";
    let running = Card::new(source).start().expect("it loads");
    let error = running.call(json!({"x": 9})).await.expect_err("lost");
    assert!(matches!(&error, InferError::Lost(why) if why.contains("cannot read")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_of_the_model_may_log_while_it_answers() {
    let source = "
import logging, threading
def load(path):
    def talk():
        while True: logging.warning('x' * 4000)
    for _ in range(3): threading.Thread(target=talk, daemon=True).start()
    return lambda x: x
def pre(request): return request['x']
def post(output): return {'y': 0, 'large': 'x' * (4 << 20)}
";
    let running = Card::new(source).start().expect("it loads");
    for x in 0..20 {
        running.call(json!({"x": x})).await.expect("an answer");
    }
    assert_eq!(running.model.health().deaths, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_behind() {
    let source = "
import os, subprocess, time
children = []
def load(path):
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    children.append(child)
    children.append(subprocess.Popen(['sleep', '600']).pid)
    return lambda x: x
def pre(request): return request['x']
def post(output): return {'y': 0, 'all': children + [os.getpid()], 'cwd': os.getcwd()}
";
    let running = Card::new(source).start().expect("it loads");
    let answer = running.call(json!({"x": 0})).await.expect("an answer");
    let all: Vec<i64> = answer["all"].as_array().expect("processes").iter().filter_map(Value::as_i64).collect();
    let scratch = PathBuf::from(answer["cwd"].as_str().expect("a path"));
    assert!(all.len() == 3 && all.iter().all(|&process| alive(process)) && scratch.exists());
    let runs = running.folder.path().join("runs");
    assert_eq!(fs_err::read_dir(&runs).expect("the folder").count(), 1);
    let Running { model, folder, .. } = running;
    tokio::task::spawn_blocking(move || drop(model)).await.expect("dropped");
    comes_true("all of its processes are gone", || !all.iter().any(|&process| alive(process)));
    assert!(!scratch.exists());
    assert_eq!(fs_err::read_dir(folder.path().join("runs")).expect("the folder").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_ended_takes_its_requests_with_it() {
    let running = Card::new(PROCESS).start().expect("it loads");
    let first = process(&running).await;
    let model = std::sync::Arc::clone(&running.model);
    let end = async {
        tokio::task::yield_now().await;
        tokio::task::spawn_blocking(move || model.end()).await.expect("ended");
    };
    let (sleeps, ()) = futures::future::join(running.call(json!({"x": 7})), end).await;
    let fine = matches!(&sleeps, Err(InferError::Lost(_) | InferError::Shed { reason: Shed::Unavailable, .. }));
    assert!(fine && !alive(first), "{sleeps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_forks_does_not_hold_the_line() {
    // The child outlives the process; its death must be seen all the same.
    let fork = "def load(path):\n    if os.fork() == 0: time.sleep(600)\n    return lambda x: x";
    let source = PROCESS.replace("def load(path): return lambda x: x", fork);
    let running = Card::new(&source).start().unwrap_or_else(|error| panic!("{error:?}\n{source}"));
    let first = process(&running).await;
    kill_process(Pid::from_raw(first as i32).expect("a process"), Signal::KILL).expect("killed");
    let deaths =
        || running.metrics().contains("worker_model_process_deaths_total{namespace=\"default\",model=\"m\"} 1");
    comes_true("its death is seen", deaths);
}

#[test]
fn what_a_process_prints_is_kept_for_its_failure() {
    let source = "
import os, sys
print('x' * 100000)
for n in range(5000): print('noise', n)
print('the last words', file=sys.stderr)
os._exit(3)
";
    let error = Card::new(source).fails();
    assert_eq!(error.category, FailureCategory::Code);
    assert!(error.message.contains("the model's process ended while it loaded: it ended with code 3"), "{error}");
    let trace = error.trace.expect("its last lines");
    assert!(trace.ends_with("noise 4999\nthe last words") && trace.lines().count() <= 64, "{trace}");
}

#[test]
fn a_crash_in_native_code_is_told() {
    let error = Card::new("import ctypes\nctypes.string_at(0)\n").fails();
    assert!(error.message.contains("signal 11"), "{error}");
    assert!(error.trace.expect("Python's own word").contains("Segmentation fault"));
}

#[test]
fn memory_has_a_limit() {
    let source = "
def load(path):
    hog = []
    while True: hog.append(b'x' * (8 << 20))
";
    let error = Card::new(source).with("/resources/memory", json!("96Mi")).fails();
    assert_eq!(error.category, FailureCategory::Memory, "{error:?}");
    assert!(error.message.contains("out of memory during model initialization"), "{error}");
    assert!(error.message.contains("96MiB"), "{error}");
}

#[test]
fn a_process_that_dies_in_its_validation_says_how() {
    let hog = DOUBLES.replace("return {'y': output}", "return {'y': len([b'x' * (8 << 20) for _ in range(99)])}");
    let error = Card::new(&hog).with("/resources/memory", json!("96Mi")).fails();
    assert_eq!(error.category, FailureCategory::Memory, "{error:?}");
    assert!(error.message.contains("out of memory during the validation inference"), "{error}");

    let exit = "import os\n    print('good bye', flush=True)\n    os._exit(7)";
    let error = Card::new(&DOUBLES.replace("return {'y': output}", exit)).fails();
    assert_eq!(error.category, FailureCategory::Validation, "{error:?}");
    assert!(error.message.contains("it ended with code 7"), "{error}");
    assert_eq!(error.trace.as_deref(), Some("good bye"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_process_sees_nothing_of_ours() {
    let source = "
import os, resource, sys
def load(path): return lambda x: x
def pre(request): return request['x']
def post(output):
    return {
        'y': 0, 'env': dict(os.environ), 'cwd': os.listdir('.'), 'stdin': sys.stdin.read(),
        'core': resource.getrlimit(resource.RLIMIT_CORE), 'fds': sorted(os.listdir('/proc/self/fd')),
        'group': os.getpgid(0) == os.getpid(),
    }
";
    let running = Card::new(source).with("/resources/cpu", json!(1.5)).start().expect("it loads");
    let answer = running.call(json!({"x": 0})).await.expect("an answer");
    let environment = answer["env"].as_object().expect("variables");
    // Cargo's own variables are in the environment of this very test.
    let foreign: Vec<&String> =
        environment.keys().filter(|name| name.starts_with("CARGO") || name.contains("AWS")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(environment["OMP_NUM_THREADS"], json!("2"));
    assert_eq!(environment["CUDA_VISIBLE_DEVICES"], json!(""));
    assert_eq!((&answer["cwd"], &answer["stdin"], &answer["core"]), (&json!([]), &json!(""), &json!([0, 0])));
    assert_eq!(answer["group"], json!(true));
    let files = answer["fds"].as_array().expect("files").len();
    assert!(files <= 8, "nothing of the worker's is open there: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_told_in_time_and_the_queue_has_an_end() {
    let card = Card { concurrency: Some(2), ..Card::new(PROCESS) };
    let running = card.with_warmup(Warmup::Off).start().expect("it loads");
    let soon = Instant::now() + Duration::from_millis(300);
    let slow = running.call_until(json!({"x": 7}), soon);
    let waits = running.call_until(json!({"x": 1}), soon);
    let third = running.call(json!({"x": 2}));
    let (slow, waits, third) = futures::future::join3(slow, waits, third).await;
    for answer in [slow, waits] {
        assert!(matches!(answer, Err(InferError::TimedOut(_))), "{answer:?}");
    }
    let Err(InferError::Shed { reason: Shed::QueueFull, message, .. }) = third else { panic!("{third:?}") };
    assert!(message.contains("2 of 2 requests"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_goes_through() {
    let input = json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}});
    let source = DOUBLES.replace("return request['x']", "return len(request['x'])");
    let card = Card::new(&source).with("/interface/input_schema", input);
    let running = card.start().expect("it loads");
    let answer = running.call(json!({"x": "x".repeat(20 << 20)})).await.expect("an answer");
    assert_eq!(answer, json!({"y": 2 * (20 << 20)}));
}

#[test]
fn a_slow_load_ends_when_nobody_wants_it() {
    let source = "
import time
def load(path):
    with open(path + '.begun', 'w'): pass
    time.sleep(600)
";
    let card = Card::new(source);
    let folder = tempfile::tempdir().expect("a folder");
    let given_up = CancellationToken::new();
    let begun = folder.path().join("model.bin.begun");
    let error = std::thread::scope(|scope| {
        let load = scope.spawn(|| card.load_in(&folder, given_up.clone()).err().expect("given up"));
        comes_true("it loads", || begun.exists());
        given_up.cancel();
        load.join().expect("no panic")
    });
    assert!(error.message.contains("given up"), "{error}");
    assert_eq!(fs_err::read_dir(folder.path().join("runs")).expect("the folder").count(), 0);
}

#[test]
fn code_is_not_written_to() {
    let running = Card::new(DOUBLES).start().expect("it loads");
    let source = running.folder.path().join("checkout/src");
    let mut there: Vec<_> =
        fs_err::read_dir(source).expect("the code").map(|e| e.expect("an entry").file_name()).collect();
    there.sort();
    assert_eq!(there, ["__init__.py", "model.py"]);
}

#[test]
fn an_interpreter_that_is_not_there_is_told() {
    let card = Card { python: Path::new("/nonexistent/python").to_owned(), ..Card::new(DOUBLES) };
    let error = card.fails();
    assert_eq!(error.category, FailureCategory::Runtime);
    assert!(error.message.contains("Python cannot be started"), "{error}");
    let error = Card::new(DOUBLES).with("/runtime/python_version", json!("3.7")).fails();
    assert_eq!(error.category, FailureCategory::Dependencies);
}
