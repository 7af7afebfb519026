//! The engine in a process of its own: loads one graph and answers runs, until it is told to end or its connection is closed.
//!
//! ```text
//!   worker ─▶ Load ─▶ session, signature, sample rows ─▶ Loaded or Failed
//!          ─▶ Run  ─▶ lanes (threads) ─▶ Result           Stop ─▶ the watchdog stops that run
//! ```
//! It is confined by the time that this begins. Nothing here keeps a crash from ending the process: that is what it is for.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    net::Shutdown,
    os::{fd::AsFd as _, unix::net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use berth_spec::{Datatype, FailureCategory, InferError, Tensor};
use bytes::Bytes;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{
    documents::{self, Order},
    program::LoadGraph,
};
use crate::{
    artifacts::Source,
    runtime::{
        LoadError,
        batch::{Engine as _, StopCondition, View, independence::rows_are_independent, stop::Caller},
        onnx::{call::Call, graph, library, prepared, session},
        process::{
            frame::{self, Frame, Kind, MAX_BODY},
            message::{self, Answer, Answers, Graph, Loaded, Raised},
        },
    },
};

/// The largest run that the worker may send: it bounds requests itself, and several of them are joined.
const LARGEST_RUN: usize = 8 << 30;

/// Requests of a run, as [`message::Run`] writes them.
#[derive(Debug, Deserialize)]
struct Requests {
    run: u64,
    requests: Vec<(usize, usize, Vec<Input>)>,
}

/// Name, datatype, shape, start and end in the body.
type Input = (String, Datatype, Vec<i64>, usize, usize);

/// A run on its way to a thread.
struct Job {
    run: u64,
    order: Order,
    inputs: Vec<Input>,
    body: Bytes,
    stop: StopCondition,
}

/// The process's connection to the worker.
struct WorkerConnection {
    stream: Mutex<UnixStream>,
    /// Runs that may be stopped, by their numbers.
    callers: Mutex<HashMap<u64, Caller>>,
}

/// Serves the connection on standard input: the whole life of the process.
pub(in crate::runtime) fn run() -> ExitCode {
    // Whoever looks at the processes of a machine sees which these are.
    let _ = rustix::thread::set_name(c"berth-onnx");
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    match stream.and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The worker keeps the last lines of its processes.
            let _ = writeln!(io::stderr(), "berth: the model's engine: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Loads what comes first, then answers runs.
fn serve(stream: UnixStream) -> io::Result<()> {
    let mut from = stream.try_clone()?;
    let connection = Arc::new(WorkerConnection { stream: Mutex::new(stream), callers: Mutex::default() });
    let first = frame::read(&mut from).map_err(io::Error::other)?;
    if first.kind != Kind::Load {
        return Err(io::Error::other("it was told nothing to load"));
    }
    let load: LoadGraph = serde_json::from_slice(&first.head)?;
    let (call, graph) = match loaded(&load) {
        Ok(loaded) => loaded,
        Err(error) => {
            let LoadError { category, message, .. } = error;
            let raised =
                Raised { message, expected: true, category: category.as_str().to_owned(), ..Raised::default() };
            return connection.send(Kind::Failed, &serde_json::to_vec(&raised)?, &[]);
        }
    };
    let (jobs, waiting) = sync_channel(load.lanes.max(1) + 1);
    let (waiting, call) = (Arc::new(Mutex::new(waiting)), Arc::new(call));
    for number in 0..load.lanes.max(1) {
        let (connection, call, waiting) = (Arc::clone(&connection), Arc::clone(&call), Arc::clone(&waiting));
        std::thread::Builder::new()
            .name(format!("berth-run-{number}"))
            .spawn(move || work(&connection, &call, &waiting))?;
    }
    connection.send(Kind::Loaded, &serde_json::to_vec(&Loaded { graph: Some(graph), ..Loaded::default() })?, &[])?;
    let ended = listen(&mut from, &connection, &jobs);
    // Threads that wait end with their channel; a run that is under way is not waited for.
    drop(jobs);
    ended
}

/// Reads frames until there are no more.
fn listen(from: &mut UnixStream, connection: &WorkerConnection, jobs: &SyncSender<Job>) -> io::Result<()> {
    loop {
        let frame = match frame::read_within(from, LARGEST_RUN) {
            Ok(frame) => frame,
            Err(frame::Broken::Closed) => return Ok(()),
            Err(error) => return Err(io::Error::other(error)),
        };
        match frame.kind {
            Kind::Run => {
                let job = connection.job(&frame)?;
                jobs.send(job).map_err(|_| io::Error::other("its threads have ended"))?;
            }
            Kind::Stop => {
                let message::StopRun { run } = serde_json::from_slice(&frame.head)?;
                connection.callers().remove(&run);
            }
            Kind::Shutdown => return Ok(()),
            _ => return Err(io::Error::other("it was sent what only processes send")),
        }
    }
}

/// The session of a graph, and what was found about it.
fn loaded(load: &LoadGraph) -> Result<(Call, Graph), LoadError> {
    let environment = library::open(Some(&load.library))
        .map_err(|error| LoadError::new(FailureCategory::Runtime, error.to_string()))?;
    let source = match &load.folder {
        Some(folder) => Source::Folder(folder.clone()),
        None => Source::File(load.graph.clone()),
    };
    let found = graph::inspect(&load.graph, &source)?;
    // A load that is given up ends with this process.
    let session = session::build(&environment, &load.graph, load.threads, &CancellationToken::new())?;
    let (call, signature, named) = prepared(session, &found, load.signature.as_ref())?;
    let unbatched = rows_are_independent(&call, &signature).err();
    Ok((call, Graph { signature, named, unbatched }))
}

/// Runs what comes, on one of the threads.
fn work(connection: &WorkerConnection, call: &Call, waiting: &Mutex<Receiver<Job>>) {
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let run = job.run;
        let outcome = catch_unwind(AssertUnwindSafe(|| infer(call, &job)));
        let outcome = outcome.unwrap_or_else(|_| Err(InferError::Internal("the run panicked".to_owned())));
        connection.callers().remove(&run);
        if connection.answer(run, outcome).is_err() {
            // The reader sees that, too, and the process ends.
            let _ = connection.stream().shutdown(Shutdown::Both);
            return;
        }
    }
}

fn infer(call: &Call, job: &Job) -> Result<Vec<Tensor>, InferError> {
    let part = |start: usize, end: usize| {
        job.body.get(start..end).ok_or_else(|| InferError::Internal("an input is cut off".to_owned()))
    };
    let views = job.inputs.iter().map(|(name, datatype, shape, start, end)| {
        Ok(View { name, datatype: *datatype, shape, data: part(*start, *end)? })
    });
    let views = views.collect::<Result<Vec<View<'_>>, InferError>>()?;
    call.run(&views, &job.order.outputs, &job.stop)
}

impl WorkerConnection {
    fn stream(&self) -> MutexGuard<'_, UnixStream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<u64, Caller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run of a frame. It may be stopped from here on.
    fn job(&self, frame: &Frame) -> io::Result<Job> {
        let Requests { run, requests } = serde_json::from_slice(&frame.head)?;
        let (start, end, inputs) = requests.into_iter().next().ok_or_else(|| io::Error::other("a run of nothing"))?;
        let order = frame.body.get(start..end).ok_or_else(|| io::Error::other("a run that is cut off"))?;
        let order: Order = serde_json::from_slice(order)?;
        let caller = Caller::new();
        let stop = StopCondition { until: order.until(), callers: vec![caller.downgrade()] };
        self.callers().insert(run, caller);
        Ok(Job { run, order, inputs, body: frame.body.clone(), stop })
    }

    fn answer(&self, run: u64, outcome: Result<Vec<Tensor>, InferError>) -> io::Result<()> {
        let answer = outcome.and_then(|outputs| {
            let head = documents::answer_head(&outputs);
            let bytes = head.len() + outputs.iter().map(|output| output.data.len()).sum::<usize>();
            if bytes > MAX_BODY {
                let most = MAX_BODY >> 20;
                return Err(InferError::Model(format!(
                    "its outputs are {bytes} bytes, and a model in a process of its own may answer with {most} MiB: ask for \
                     fewer rows, or set runtime.isolation to none"
                )));
            }
            Ok((head, outputs, bytes))
        });
        match answer {
            Ok((head, outputs, bytes)) => {
                let answers = Answers { run, answers: vec![Answer::Well(bytes)] };
                let parts: Vec<&[u8]> =
                    std::iter::once(&head[..]).chain(outputs.iter().map(|output| &output.data[..])).collect();
                self.send(Kind::Result, &serde_json::to_vec(&answers)?, &parts)
            }
            Err(error) => {
                let (category, message) = (error.reason().to_owned(), error.to_string());
                let raised = Answer::Raised(Raised { message, category, ..Raised::default() });
                let answers = Answers { run, answers: vec![raised] };
                self.send(Kind::Result, &serde_json::to_vec(&answers)?, &[])
            }
        }
    }

    /// Sends a frame, a small one in one piece.
    fn send(&self, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()> {
        /// The largest body that is copied into one piece with its head.
        const SMALL: usize = 64 << 10;
        let length = body.iter().map(|part| part.len()).sum();
        let mut first = frame::prefix(kind, head.len(), length).to_vec();
        first.extend_from_slice(head);
        let mut stream = self.stream();
        if length <= SMALL {
            body.iter().for_each(|part| first.extend_from_slice(part));
            return stream.write_all(&first);
        }
        stream.write_all(&first)?;
        body.iter().try_for_each(|part| stream.write_all(part))
    }
}
