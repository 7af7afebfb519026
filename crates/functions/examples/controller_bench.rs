//! The controller of functions with 10,000 of them that serve: time of one change until it serves, and memory of each. Prints JSON.
//!
//! `cargo run --release -p berth-functions --example controller_bench`
#![expect(clippy::print_stdout, reason = "the line is the result")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::{BTreeMap, VecDeque},
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use berth_control::store::Rev;
use berth_functions::{
    controller::{Built, Controller, Deployed, Effect, Event, Policy, TaskId, View},
    deployment::Declared,
    status::ArtifactStatus,
    writer::Written,
};
use berth_spec::Time;

/// Functions.
const MANY: usize = 10_000;

/// Changes that are measured.
const CHANGES: usize = 1_000;

/// The system's allocator, which counts what is in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is passed on to the system's allocator; counting allocates nothing.
#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn object(number: usize, version: usize) -> String {
    format!(
        r#"{{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{{"name":"f{number}","generation":{version}}},"spec":{{"type":"keras","sourceUri":"azure-blob://artifacts/models/f{number}/v{version}/src.zip","entrypoint":"handler.predict","runtime":{{"pythonVersion":"3.11"}},"target":{{"platform":"local"}}}}}}"#
    )
}

/// The end of a log, as statuses have it.
const LOG: &str = "build b1795685495346 of f1: azure-blob://artifacts/models/f1/v1/src.zip\nno requirements.txt: no packages\n\
                   sha256:032be55801379faf6d6718c68786a23757cc33b87db02f780d929dcc5c042656 of 1581 bytes after 0.9 s\n";

fn built(task: TaskId) -> Built {
    Built {
        artifact: ArtifactStatus { digest: format!("sha256:{:064}", task.0), size: 1_581 },
        cached: false,
        restored: false,
        took: Duration::from_millis(900),
        log_tail: LOG.to_owned(),
        notes: Vec::new(),
    }
}

/// Carries out effects, and those that follow from them, as a store, builds and targets would that answer at once.
fn settle(controller: &mut Controller, effects: Vec<Effect>, rev: &mut u64) {
    let mut open = VecDeque::from(effects);
    while let Some(effect) = open.pop_front() {
        let event = match effect {
            Effect::Write(key, _, status) => {
                *rev += 1;
                Event::Written(key, status, Written::Done(Rev(*rev)))
            }
            Effect::Build(task, _) => Event::Built(task, Box::new(Ok(built(task)))),
            Effect::Deploy(task, work, _) => {
                let endpoint = format!("http://127.0.0.1:8080/functions/{}", work.spec.name);
                Event::Deployed(task, Ok(Deployed { endpoint, note: String::new() }))
            }
            _ => continue,
        };
        open.extend(controller.on(event, Time(1)));
    }
}

/// Tells of every object as it stands now, as the watch of a store does after the write of its status.
fn echo(controller: &mut Controller, rev: u64) {
    let stored = |view: View<'_>| {
        let number = view.name[1..].parse().expect("a number");
        let status = serde_json::to_string(&**view.status).expect("JSON");
        let text = object(number, 1).replacen('{', &format!(r#"{{"status":{status},"#), 1);
        Event::Put(view.name.to_owned(), Box::new(Declared::read(view.name, text.as_bytes(), Rev(rev))))
    };
    let echoes: Vec<Event> = controller.view().map(stored).collect();
    for echo in echoes {
        let effects = controller.on(echo, Time(1));
        assert!(effects.is_empty(), "an echo is no news: {effects:?}");
    }
}

fn main() {
    let before = IN_USE.load(Ordering::Relaxed);
    let mut rev = MANY as u64;
    let mut controller = Controller::new(Policy::default(), 1, BTreeMap::new());
    let read = |number: usize, version: usize| {
        let name = format!("f{number}");
        let declared = Declared::read(&name, object(number, version).as_bytes(), Rev(number as u64 + 1));
        (name, declared)
    };
    let began = Instant::now();
    let effects = controller.on(Event::Listed((0..MANY).map(|number| read(number, 1)).collect()), Time(1));
    let listed = began.elapsed();
    settle(&mut controller, effects, &mut rev);
    echo(&mut controller, rev);
    controller.changed();
    let each = (IN_USE.load(Ordering::Relaxed) - before) / MANY;
    let mut times = Vec::with_capacity(CHANGES);
    for change in 0..CHANGES {
        let number = change * 7 % MANY;
        let began = Instant::now();
        let (name, declared) = read(number, change + 2);
        let effects = controller.on(Event::Put(name, Box::new(declared)), Time(2));
        settle(&mut controller, effects, &mut rev);
        black_box((controller.changed().len(), controller.counts().len()));
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!(
        r#"{{"functions": {MANY}, "listed_ms": {:.1}, "change_ms_p50": {:.3}, "change_ms_p99": {:.3}, "bytes_each": {each}}}"#,
        listed.as_secs_f64() * 1e3,
        times[CHANGES / 2].as_secs_f64() * 1e3,
        times[CHANGES * 99 / 100].as_secs_f64() * 1e3,
    );
}
