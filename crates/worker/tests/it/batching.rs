//! The batcher on an engine that is scripted here: who runs with whom, who does not run at all, and what stays true
//! whatever happens.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_spec::{Datatype, InferError, Tensor, inference::Shed};
use berth_worker::runtime::{
    batch::{
        Batcher, Engine, Limits, Pool, StopCondition, View,
        queue::{LATE_AFTER, PushOutcome, Queue, QueuedRequest, Work},
    },
    metrics::Families,
};
use bytes::Bytes;
use futures::FutureExt;
use prometheus_client::registry::Registry;
use proptest::prelude::*;

/// Doubles every byte; a byte of 255 fails the run; records the rows of its runs; can be held up.
#[derive(Default)]
struct Doubler {
    runs: Mutex<Vec<usize>>,
    held: Mutex<bool>,
    changed: Condvar,
    entered: AtomicUsize,
}

impl Doubler {
    fn hold(&self, hold: bool) {
        *self.held.lock().expect("not poisoned") = hold;
        self.changed.notify_all();
    }

    fn runs(&self) -> Vec<usize> {
        self.runs.lock().expect("not poisoned").clone()
    }
}

struct Shared(Arc<Doubler>);

impl Engine for Shared {
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], _: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let held = self.0.held.lock().expect("not poisoned");
        drop(self.0.changed.wait_while(held, |held| *held).expect("not poisoned"));
        let input = inputs[0];
        self.0.runs.lock().expect("not poisoned").push(usize::try_from(input.shape[0]).expect("rows"));
        assert_eq!(input.data.len() as i64, input.shape.iter().product::<i64>());
        assert!(input.data.first() != Some(&254), "a run that panics, as the test wants it");
        if input.data.contains(&255) {
            return Err(InferError::Model("255".to_owned()));
        }
        let data: Vec<u8> = input.data.iter().map(|byte| byte.wrapping_mul(2)).collect();
        let tensor = |&index: &usize| Tensor {
            name: format!("y{index}"),
            datatype: Datatype::Uint8,
            shape: input.shape.to_vec(),
            data: Bytes::from(data.clone()),
        };
        Ok(outputs.iter().map(tensor).collect())
    }
}

const LIMITS: Limits = Limits { max_requests: 256, max_rows: 32, max_delay: Duration::ZERO, lanes: 1 };

struct Fixture {
    engine: Arc<Doubler>,
    batcher: Batcher,
    _pool: Pool,
}

/// Of a model whose runs are known to be short, as after validation.
fn fixture(limits: Limits) -> Fixture {
    unknown(limits).quick()
}

/// Of a model that never ran.
fn unknown(limits: Limits) -> Fixture {
    let engine = Arc::new(Doubler::default());
    let pool = Pool::start(2).expect("threads");
    let metrics = Families::register(&mut Registry::default()).model(&"m".parse().expect("a name"));
    let batcher = Batcher::new(Box::new(Shared(Arc::clone(&engine))), limits, pool.run_queue(), metrics);
    Fixture { engine, batcher, _pool: pool }
}

impl Fixture {
    /// Runs of few rows count as short ones.
    fn quick(self) -> Self {
        self.batcher.tally().seed(1, Duration::from_nanos(100));
        self
    }

    /// From now on runs count as long ones, which go to the pool.
    fn slow(self) -> Self {
        self.batcher.tally().seed(1, Duration::from_secs(10));
        self
    }
}

fn work(rows: &[[u8; 2]]) -> Work {
    let shape = vec![rows.len() as i64, 2];
    let input = Tensor { name: "x".to_owned(), datatype: Datatype::Uint8, shape, data: Bytes::from(rows.concat()) };
    Work { inputs: vec![input], outputs: Arc::new([0]), rows: Some(u32::try_from(rows.len()).expect("few")) }
}

fn doubled(rows: &[[u8; 2]]) -> Bytes {
    rows.concat().iter().map(|byte| byte.wrapping_mul(2)).collect()
}

/// Longer than anything here may take, also on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Waits for `condition` without a clock: other tasks and threads go on meanwhile.
async fn until(condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "it never comes to that");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_there_together_runs_together() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    let rows: Vec<[u8; 2]> = (0..40).map(|n| [n, n]).collect();
    let answers = futures::future::join_all(rows.iter().map(|row| batcher.infer(work(&[*row]), soon()))).await;
    for (answer, row) in answers.into_iter().zip(&rows) {
        assert_eq!(answer.expect("it runs")[0].data, doubled(&[*row]));
    }
    assert_eq!(engine.runs(), [32, 8]);
}

#[tokio::test]
async fn only_compatible_requests_share_a_run() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    let mut wide = work(&[[1, 2]]);
    wide.inputs[0].shape = vec![1, 2, 1];
    let mut other_outputs = work(&[[3, 4]]);
    other_outputs.outputs = Arc::new([1, 0]);
    let mut uneven = work(&[[5, 6]]);
    uneven.rows = None;
    let works = [work(&[[1, 1]]), wide, work(&[[2, 2], [3, 3]]), other_outputs, uneven, work(&[[4, 4]])];
    let answers = futures::future::join_all(works.into_iter().map(|work| batcher.infer(work, soon()))).await;
    assert!(answers.iter().all(Result::is_ok));
    let names: Vec<&str> = answers[3].as_ref().expect("ran").iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["y1", "y0"]);
    assert_eq!(engine.runs(), [4, 1, 1, 1]);
}

#[tokio::test]
async fn a_request_of_many_rows_runs_alone() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    let many = vec![[1, 2]; 100];
    let (first, second) = tokio::join!(batcher.infer(work(&many), soon()), batcher.infer(work(&[[1, 1]]), soon()));
    assert_eq!((first.expect("ran")[0].data.len(), second.is_ok()), (200, true));
    assert_eq!(engine.runs(), [100, 1]);
}

#[tokio::test]
async fn one_bad_request_fails_alone() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    let rows = [[1, 1], [2, 255], [3, 3]];
    let answers = futures::future::join_all(rows.iter().map(|row| batcher.infer(work(&[*row]), soon()))).await;
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(answers[1], Err(InferError::Model(_))));
    assert_eq!(engine.runs(), [3, 1, 1, 1]);
}

#[tokio::test]
async fn a_late_request_is_not_run() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    let past = Instant::now();
    let answer = batcher.infer(work(&[[1, 1]]), past).await;
    assert!(matches!(answer, Err(InferError::TimedOut(_))));

    let Fixture { engine: held, batcher, _pool: _held } = fixture(LIMITS).slow();
    held.hold(true);
    let first = batcher.infer(work(&[[1, 1]]), soon());
    let second = async {
        until(|| held.entered.load(Ordering::SeqCst) == 1).await;
        let answer = batcher.infer(work(&[[2, 2]]), Instant::now() + Duration::from_millis(5)).await;
        held.hold(false);
        answer
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_ok() && matches!(second, Err(InferError::TimedOut(_))));
    assert_eq!((engine.runs(), held.runs()), (vec![], vec![1]));
}

#[tokio::test]
async fn a_dropped_request_is_not_run() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS).slow();
    engine.hold(true);
    let first = batcher.infer(work(&[[1, 1]]), soon());
    let second = async {
        until(|| engine.entered.load(Ordering::SeqCst) == 1).await;
        let mut dropped = Box::pin(batcher.infer(work(&[[2, 2]]), soon()));
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        engine.hold(false);
    };
    let (first, ()) = tokio::join!(first, second);
    first.expect("it runs");
    batcher.infer(work(&[[3, 3]]), soon()).await.expect("it runs");
    assert_eq!(engine.runs(), [1, 1]);
}

/// The leader is dropped while it gathers: those that follow it must not wait for ever.
#[tokio::test]
async fn a_dropped_leader_passes_the_lead_on() {
    for delay in [Duration::ZERO, Duration::from_secs(100)] {
        let Fixture { engine, batcher, _pool } = fixture(Limits { max_delay: delay, ..LIMITS });
        let mut leader = Box::pin(batcher.infer(work(&[[1, 1]]), soon() + delay));
        assert!((&mut leader).now_or_never().is_none());
        let mut follower = Box::pin(batcher.infer(work(&[[2, 2]]), soon() + delay));
        assert!((&mut follower).now_or_never().is_none());
        drop(leader);
        follower.await.expect("it runs");
        assert_eq!(engine.runs(), [1]);
    }
}

#[test]
fn the_next_request_leads_where_the_leader_has_lost_its_core() {
    let now = Instant::now();
    let push = |queue: &mut Queue, since: Duration| {
        let entry = QueuedRequest {
            work: work(&[[1, 2]]),
            deadline: now + Duration::from_secs(60),
            since: now + since,
            caller: None,
            reply: tokio::sync::oneshot::channel().0,
        };
        queue.push(entry, Duration::ZERO).expect("there is room")
    };
    let late = LATE_AFTER + Duration::from_nanos(1);

    let mut queue = Queue::new(Limits { lanes: 2, ..LIMITS });
    assert_eq!(push(&mut queue, Duration::ZERO), PushOutcome::Lead(Duration::ZERO));
    assert_eq!(push(&mut queue, LATE_AFTER), PushOutcome::Follow, "it may still come");
    assert_eq!(push(&mut queue, late), PushOutcome::Lead(Duration::ZERO));
    assert_eq!(push(&mut queue, late + late), PushOutcome::Follow, "no more than lanes");

    let mut queue = Queue::new(LIMITS);
    assert_eq!(push(&mut queue, Duration::ZERO), PushOutcome::Lead(Duration::ZERO));
    assert_eq!(push(&mut queue, late), PushOutcome::Follow, "a model of one lane waits");
}

#[tokio::test]
async fn a_full_queue_sheds_and_recovers() {
    let Fixture { engine, batcher, _pool } = fixture(Limits { max_requests: 2, ..LIMITS }).slow();
    engine.hold(true);
    let third = async {
        until(|| engine.entered.load(Ordering::SeqCst) == 1).await;
        let mut waits = Box::pin(batcher.infer(work(&[[2, 2]]), soon()));
        assert!((&mut waits).now_or_never().is_none());
        let shed = batcher.infer(work(&[[3, 3]]), soon()).await;
        drop(waits);
        let mut room = Box::pin(batcher.infer(work(&[[4, 4]]), soon()));
        assert!((&mut room).now_or_never().is_none(), "a dropped request makes room");
        engine.hold(false);
        (shed, room.await)
    };
    let (first, (shed, room)) = tokio::join!(batcher.infer(work(&[[1, 1]]), soon()), third);
    assert!(first.is_ok() && room.is_ok());
    let Err(InferError::Shed { reason: Shed::QueueFull, retry_in: Some(retry_in), .. }) = shed else {
        panic!("{shed:?}")
    };
    assert!(retry_in >= Duration::from_millis(1));
}

/// Each part has its own batcher: its one run is its first, which is not the pool's, so that the paused clock only
/// moves when a gatherer waits for it.
#[tokio::test(start_paused = true)]
async fn a_gathering_ends_when_it_is_complete_or_a_deadline_is_near() {
    let limits = Limits { max_rows: 3, max_delay: Duration::from_secs(10), ..LIMITS };
    let begun = tokio::time::Instant::now();
    let far = Instant::now() + Duration::from_secs(1000);

    let Fixture { engine, batcher, _pool } = fixture(limits);
    let requests = (0..3).map(|n| batcher.infer(work(&[[n, n]]), far));
    assert!(futures::future::join_all(requests).await.iter().all(Result::is_ok));
    assert_eq!((engine.runs(), begun.elapsed()), (vec![3], Duration::ZERO), "it was complete");

    let Fixture { engine, batcher, _pool } = fixture(limits);
    let near = Instant::now() + Duration::from_secs(5);
    let (patient, hurried) = tokio::join!(batcher.infer(work(&[[1, 1]]), far), batcher.infer(work(&[[2, 2]]), near));
    assert!(patient.is_ok() && hurried.is_ok());
    assert_eq!((engine.runs(), begun.elapsed()), (vec![2], Duration::ZERO), "one was in a hurry");

    let Fixture { engine, batcher, _pool } = fixture(limits);
    batcher.infer(work(&[[1, 1]]), far).await.expect("it runs");
    assert_eq!(engine.runs(), [1]);
    assert!(begun.elapsed() >= Duration::from_secs(9), "nobody else came");
}

/// A held run on this thread would hold up the whole test.
#[tokio::test]
async fn what_may_take_long_is_left_to_the_pool() {
    let Fixture { engine, batcher, _pool } = unknown(LIMITS);
    engine.hold(true);
    let release = async {
        until(|| engine.entered.load(Ordering::SeqCst) == 1).await;
        engine.hold(false);
    };
    let (answer, ()) = tokio::join!(batcher.infer(work(&[[1, 1]]), soon()), release);
    answer.expect("it runs");

    let Fixture { engine, batcher, _pool } = fixture(LIMITS);
    engine.hold(true);
    let release = async {
        until(|| engine.entered.load(Ordering::SeqCst) == 1).await;
        engine.hold(false);
    };
    let many = vec![[1, 2]; 10_000];
    let (answer, ()) = tokio::join!(batcher.infer(work(&many), soon()), release);
    answer.expect("it runs");
}

#[tokio::test]
async fn a_run_that_panics_harms_no_other() {
    let Fixture { engine, batcher, _pool } = fixture(LIMITS).slow();
    let answer = batcher.infer(work(&[[254, 0]]), soon()).await;
    assert!(matches!(answer, Err(InferError::Internal(_))), "{answer:?}");
    batcher.infer(work(&[[1, 1]]), soon()).await.expect("the lane is free again");
    assert_eq!(engine.runs(), [1, 1]);
}

/// Requests of one to five rows, some of which fail, from two threads at once.
fn requests() -> impl Strategy<Value = Vec<Vec<[u8; 2]>>> {
    let value = prop_oneof![20 => 0_u8..250, 1 => Just(255)];
    let row = (value, 0_u8..250).prop_map(|(a, b)| [a, b]);
    proptest::collection::vec(proptest::collection::vec(row, 1..=5), 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn batched_equals_unbatched(requests in requests(), max_rows in 1_u32..20, lanes in 1_usize..4, slow: bool) {
        let fixture = fixture(Limits { max_rows, lanes, ..LIMITS });
        let Fixture { engine, batcher, _pool } = if slow { fixture.slow() } else { fixture };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let answers = runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for (index, rows) in requests.iter().enumerate() {
                let (batcher, work) = (batcher.clone(), work(rows));
                tasks.spawn(async move { (index, batcher.infer(work, soon()).await) });
            }
            tasks.join_all().await
        });
        prop_assert_eq!(answers.len(), requests.len());
        for (index, answer) in answers {
            let rows = &requests[index];
            if rows.concat().contains(&255) {
                prop_assert!(matches!(answer, Err(InferError::Model(_))));
            } else {
                let outputs = answer.expect("it runs");
                prop_assert_eq!(&outputs[0].shape, &[rows.len() as i64, 2]);
                prop_assert_eq!(&outputs[0].data, &doubled(rows));
            }
        }
        let largest = requests.iter().map(Vec::len).max().unwrap_or(0).max(max_rows as usize);
        prop_assert!(engine.runs().into_iter().all(|rows| rows <= largest));
        let statistics = batcher.tally().statistics(0);
        prop_assert_eq!(statistics.queue.count, requests.len() as u64);
    }
}

/// Runs that are told the name of their thread, and last as long as they are told.
struct Lasting {
    threads: Mutex<Vec<String>>,
    lasts: Mutex<Duration>,
    bounded: bool,
}

struct SharedLasting(Arc<Lasting>);

impl Engine for SharedLasting {
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.threads.lock().expect("not poisoned").push(name);
        let end = Instant::now() + *self.0.lasts.lock().expect("not poisoned");
        while Instant::now() < end {
            if Instant::now() > stop.until || StopCondition::is_abandoned(&stop.callers) {
                return Err(InferError::TimedOut("stopped".to_owned()));
            }
            std::thread::yield_now();
        }
        let data = Bytes::copy_from_slice(inputs[0].data);
        let tensor = |index: &usize| Tensor {
            name: format!("y{index}"),
            datatype: Datatype::Uint8,
            shape: inputs[0].shape.to_vec(),
            data: data.clone(),
        };
        Ok(outputs.iter().map(tensor).collect())
    }

    fn is_bounded(&self) -> bool {
        self.0.bounded
    }
}

fn lasting(bounded: bool) -> (Arc<Lasting>, Batcher, Pool) {
    let engine = Arc::new(Lasting { threads: Mutex::default(), lasts: Mutex::default(), bounded });
    let pool = Pool::start(1).expect("threads");
    let metrics = Families::register(&mut Registry::default()).model(&"m".parse().expect("a name"));
    let batcher = Batcher::new(Box::new(SharedLasting(Arc::clone(&engine))), LIMITS, pool.run_queue(), metrics);
    batcher.tally().seed(1, Duration::from_nanos(100));
    (engine, batcher, pool)
}

#[tokio::test]
async fn one_long_run_keeps_a_model_off_the_threads_of_connections() {
    let (engine, batcher, _pool) = lasting(true);
    let here = std::thread::current().name().unwrap_or_default().to_owned();
    // Short runs before it would prove nothing: on a busy machine one of them may take long, and be the one.
    *engine.lasts.lock().expect("not poisoned") = Duration::from_millis(1_300);
    batcher.infer(work(&[[1, 1]]), soon()).await.expect("it is stopped here and run again there");
    let threads = || engine.threads.lock().expect("not poisoned").clone();
    assert_eq!(threads(), [here.as_str(), "berth-long-0"]);
    *engine.lasts.lock().expect("not poisoned") = Duration::ZERO;
    batcher.tally().seed(1, Duration::from_nanos(100));
    batcher.infer(work(&[[1, 1]]), soon()).await.expect("it runs");
    assert_eq!(threads().last().map(String::as_str), Some("berth-long-0"), "for good");
}

#[tokio::test]
async fn a_model_without_bound_runs_aside_from_the_start_and_ends_with_its_callers() {
    let (engine, batcher, _pool) = lasting(false);
    *engine.lasts.lock().expect("not poisoned") = PATIENCE;
    let run = batcher.infer(work(&[[1, 1]]), soon());
    assert!(tokio::time::timeout(Duration::from_millis(50), run).await.is_err(), "it lasts");
    *engine.lasts.lock().expect("not poisoned") = Duration::ZERO;
    batcher.infer(work(&[[1, 1]]), soon()).await.expect("the thread is free again");
    let threads = engine.threads.lock().expect("not poisoned").clone();
    assert!(threads.len() == 2 && threads.iter().all(|name| name == "berth-long-0"), "{threads:?}");
}
