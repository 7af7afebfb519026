//! Model servers of other processes that are told which models to hold: those written for ModelMesh, by `mmesh.ModelRuntime`
//! over a Unix socket or TCP, and those with a model repository in the Open Inference Protocol.
//!
//! ```text
//! open:  runtimeStatus until READY ─▶ limits, methods
//! load:  room ─▶ (guess) ─▶ loadModel ─▶ (modelSize) ─▶ SpiModel          end: unloadModel, until it is done
//! call:  any gRPC method ─▶ the model's id in metadata, and in the message where the method wants it ─▶ the runtime
//! ```
//! Reading order: [`address`] and `thread_connections` are the way there, `control` its five methods (`called`: by which name), `limits` and
//! `methods` what it says of itself, and `location` what it is told of an artifact. `room` counts what it holds; `model` is one
//! model: `head`, `inject` and `body` carry a call, `berth_wire::bounded_status` keeps its status short, `lost` recognizes that the model is not there
//! any more, `unavailable` says so as ModelMesh does, `concurrency_limit` bounds calls, `unload` ends models there, `tensors` are requests in the Open Inference Protocol.
//!
//! `v2` does the same for servers of the Open Inference Protocol, with folders that `layout` makes. `program` starts a runtime's
//! process and keeps it running; `reach` waits for one that is started again, and `outage` loses the models of one that is not, or that
//! hangs; `per_model` starts one for each model.
//!
//! `runtimeStatus` is asked at the start only: a runtime unloads everything before it answers READY.

pub mod address;

mod body;
mod called;
mod concurrency_limit;
mod control;
mod head;
mod inject;
mod layout;
mod limits;
mod listed;
mod location;
mod lost;
mod methods;
mod model;
mod open_error;
mod outage;
mod per_model;
mod program;
mod reach;
mod room;
mod settings;
mod tensors;
mod thread_connections;
mod unavailable;
mod unload;
mod v2;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use berth_spec::{ByteSize, FailureCategory, Isolation, IsolationOffer, RuntimeInfo};
use berth_wire::mmesh::{LoadModelRequest, LoadModelResponse, runtime_status_response};
use tokio::{
    runtime::{Builder, Handle, Runtime as Tokio},
    sync::Semaphore,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    address::Address,
    body::CopyBudget,
    concurrency_limit::ConcurrencyLimit,
    control::{Control, Spi},
    limits::Limits,
    listed::Listed,
    model::SpiModel,
    outage::Outage,
    per_model::OwnFiles,
    program::Supervisor,
    reach::{Absence, LoadClock},
    room::Room,
    thread_connections::ThreadConnections,
    unload::Entered,
    v2::V2,
};
pub use self::{
    layout::{Layout, Repository, StartModel},
    open_error::OpenError,
    per_model::{OneModel, PerModel, SettingsFactory},
    program::Program,
    settings::{HealthCheck, InFlight, Protocol, Reserve, START, Settings},
};
use super::{
    LoadError, LoadRequest, Loaded, LoadedModel as _, Runtime,
    metrics::{Families, ServerMetrics},
};
use crate::load_times::LoadTimes;

/// The interval at which a runtime that starts is asked for its state: short beside a start, and its log stays readable.
const POLL: Duration = Duration::from_millis(250);

/// The end of a load waits so long for the runtime to unload: in nearly all cases the memory is free then.
const UNLOAD_WAIT: Duration = Duration::from_secs(10);

/// For people: a model server cannot isolate one model from another.
const SHARED: &str = "this model server runs all its models in one process; remove runtime.isolation, or use a format that Berth runs by itself";

/// A [`Runtime`] that loads models into a model server through its management interface, and calls them there.
pub struct SpiRuntime {
    settings: Settings,
    process: Arc<Process>,
    families: Families,
}

/// A runtime's process, as its models share it.
struct Process {
    name: String,
    control: Control,
    connections: Arc<ThreadConnections>,
    limits: Limits,
    room: Room,
    wraps_unavailable: bool,
    copies: Arc<CopyBudget>,
    loading: Semaphore,
    load_times: LoadTimes,
    health: HealthCheck,
    absence: Arc<Absence>,
    outage: Arc<Outage>,
    threads: Threads,
    metrics: ServerMetrics,
    /// True for a process of one model alone, which ends with that.
    alone: bool,
    /// Ends after everything else.
    running: Mutex<StartedProgram>,
}

/// A program that Berth started, and what it has to itself: that goes after it.
#[derive(Default)]
struct StartedProgram {
    program: Option<Supervisor>,
    _own: Option<OwnFiles>,
}

impl SpiRuntime {
    /// Connects, and waits until the runtime is ready. Blocks.
    pub fn open(settings: Settings, families: Families) -> Result<Self, OpenError> {
        Self::open_within(settings, families, None)
    }

    /// The same; `one` is there for a process of one model alone: it ends the wait, and has the process's files.
    fn open_within(
        settings: Settings,
        families: Families,
        one: Option<(&CancellationToken, OwnFiles)>,
    ) -> Result<Self, OpenError> {
        let (cancel, own) = one.unzip();
        let thread = |error| OpenError::Thread(settings.name.clone(), error);
        let tokio = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("runtime-{}", settings.name))
            .enable_all()
            .build()
            .map_err(thread)?;
        let threads = Threads(Some(tokio));
        if let Protocol::V2(repository) | Protocol::TensorFlow(repository) = &settings.protocol {
            repository.open().map_err(|error| OpenError::Program(settings.name.clone(), error))?;
        }
        let program = settings.program.clone().map(|program| Supervisor::start(&settings.name, program));
        let program = program.transpose().map_err(|error| OpenError::Program(settings.name.clone(), error))?;
        let _entered = threads.handle().enter();
        let places = places(&settings)?;
        // A thread that already runs futures may build a worker: it waits for another one's word.
        let (ready, word) = mpsc::channel();
        let (of, start) = (settings.name.clone(), settings.start);
        let bounds = cancel.cloned().zip(program.as_ref().map(Supervisor::deaths));
        threads.handle().spawn(async move {
            let name = of.clone();
            let found = until_ready(places, of, start);
            let found = match bounds {
                Some((cancel, deaths)) => per_model::awaited(found, &cancel, &deaths, &name).await,
                None => Some(found.await),
            };
            if let Some(found) = found {
                let _ = ready.send(found);
            }
        });
        let gone = std::io::Error::other("its thread ended");
        let ready = word.recv().map_err(|_| thread(gone))?;
        let (address, control, mut limits) = ready.map_err(|error| match &program {
            Some(program) => error.with(&program.last_words()),
            None => error,
        })?;
        let inference = settings.inference.clone().unwrap_or_else(|| address.clone());
        if let Some(memory) = settings.memory {
            limits.capacity = memory.0;
        }
        tracing::info!(
            event = "runtime_ready",
            runtime = settings.name,
            %address,
            version = limits.version,
            capacity = %ByteSize(limits.capacity),
            parallel_loads = limits.loads,
        );
        let process = Process {
            name: settings.name.clone(),
            control,
            connections: Arc::new(ThreadConnections::new(inference)),
            room: Room::new(limits.capacity, limits.reserve(settings.unload_reserve)),
            wraps_unavailable: settings.wraps_unavailable,
            copies: CopyBudget::new(settings.kept),
            loading: Semaphore::new(limits.loads),
            load_times: LoadTimes::default(),
            health: settings.health,
            absence: Arc::new(Absence::new(settings.health.lost_after)),
            outage: Arc::new(Outage::new()),
            alone: own.is_some(),
            running: Mutex::new(StartedProgram { program, _own: own }),
            limits,
            threads,
            metrics: families.servers().clone(),
        };
        let process = Arc::new(process);
        process.check_health();
        Ok(Self { settings, process, families })
    }

    /// Loads at once that the runtime takes.
    #[must_use]
    pub fn parallel_loads(&self) -> usize {
        self.process.limits.loads
    }

    async fn loaded(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        let (process, revision) = (&self.process, &request.revision);
        if let Some(asked) = revision.runtime.isolation.filter(|asked| *asked > Isolation::None) {
            let message = format!("the deployment asks for runtime.isolation {:?}: {SHARED}", asked.as_str());
            return Err(LoadError::new(FailureCategory::Runtime, message));
        }
        let (deployment, other) = (revision.id.deployment(), revision.id.to_string());
        let (own, other) = match process.control {
            Control::Spi(_) => (deployment.model_id().to_owned(), other),
            Control::V2(_) | Control::Listed(_) => (layout::safe(deployment.as_str()), layout::safe(&other)),
        };
        let mut asked = match process.control {
            Control::Spi(_) => location::asked(request, &own)?,
            Control::V2(_) | Control::Listed(_) => location::named(request, &own)?,
        };
        let limits = &process.limits;
        let predicted = process.control.predicted(&asked).await;
        let expected = revision.memory.map(|memory| memory.0).or(predicted).unwrap_or(limits.default_size);
        if limits.capacity > 0 && expected > limits.capacity {
            // Not `Memory`, which is tried again with a larger claim: this runtime cannot hold it, whatever leaves.
            let message = format!(
                "it takes about {}, which is more than the {} of runtime {}: give the runtime more memory, or \
                 the model another worker",
                ByteSize(expected),
                ByteSize(limits.capacity),
                process.name
            );
            return Err(LoadError::new(FailureCategory::Runtime, message).with_needs(ByteSize(expected)));
        }
        let entered = tokio::select! {
            biased;
            entered = process.room.enter([&own, &other], expected) => entered,
            // It lets go of nothing.
            () = process.outage.gone() => Err(process.unreached()),
        };
        asked.model_id = entered?.to_owned();
        let entered = Entered::new(Arc::clone(process), asked.model_id.clone());
        let answer = process.load_bare(&asked, ByteSize(expected)).await?;
        let told = Some(answer.size_in_bytes).filter(|size| *size > 0);
        let size = match told {
            Some(size) => Some(size),
            None => {
                let began = Instant::now();
                let size = process.control.size(&asked.model_id).await;
                process.metrics.sizing.observe(began.elapsed().as_secs_f64());
                size
            }
        };
        let memory = ByteSize(size.unwrap_or(expected));
        process.room.measured(&asked.model_id, memory.0);
        let most = usize::try_from(answer.max_concurrency).unwrap_or(usize::MAX);
        let concurrency_limit =
            (limits.limits_concurrency && most > 0).then(|| ConcurrencyLimit::new(most, self.settings.in_flight));
        let declared = match revision.signature.as_deref().cloned() {
            None => process.control.signature(&asked.model_id).await.map(Arc::new),
            said => said.map(Arc::new),
        };
        let metrics = self.families.model(&request.serving.deployment);
        entered.stays();
        let model = SpiModel::new(Arc::clone(process), asked, memory, declared, concurrency_limit, metrics);
        model.set_serving(&request.serving);
        Ok(Loaded { model: Arc::new(model), memory, measured: size.is_some(), note: None })
    }
}

impl Runtime for SpiRuntime {
    fn info(&self) -> RuntimeInfo {
        let room = self.process.room.for_models();
        RuntimeInfo {
            name: self.settings.name.clone(),
            formats: self.settings.formats.clone(),
            labels: self.settings.labels.clone(),
            memory: Some(room).filter(|room| *room > 0).map(ByteSize),
            max_models: self.settings.max_models,
            device_memory: self.settings.device_memory,
            default_size: Some(ByteSize(self.process.limits.default_size)),
            isolation: Some(IsolationOffer { most: Isolation::None, lacks: SHARED.to_owned() }),
        }
    }

    fn is_interruptible(&self) -> bool {
        true
    }

    fn bounds_loads(&self) -> bool {
        true
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        self.process.handle().block_on(async {
            tokio::select! {
                biased;
                () = request.cancel.cancelled() => {
                    Err(LoadError::new(FailureCategory::Internal, "the load was given up"))
                }
                loaded = self.loaded(request) => loaded,
            }
        })
    }
}

/// The places where the runtime may be, with the way to tell it what to hold. Must be called within a runtime of tokio.
fn places(settings: &Settings) -> Result<Vec<(Address, Control)>, OpenError> {
    let mut places = Vec::new();
    for address in std::iter::once(&settings.address).chain(&settings.alternative) {
        let channel = address.endpoint()?.connect_lazy();
        let control = match &settings.protocol {
            Protocol::Spi => Control::Spi(Spi::new(channel)),
            Protocol::V2(repository) if repository.layout == Layout::OpenVino => {
                let rest = settings.rest.as_ref().and_then(Address::url).unwrap_or_default().to_owned();
                let listed = Listed::open_vino(channel, rest, repository.clone());
                let failed = |error| OpenError::Program(settings.name.clone(), std::io::Error::other(error));
                Control::Listed(listed.map_err(failed)?)
            }
            Protocol::V2(repository) => Control::V2(V2::new(channel, repository.clone())),
            Protocol::TensorFlow(repository) => Control::Listed(Listed::tensorflow(channel, repository.clone())),
        };
        places.push((address.clone(), control));
    }
    Ok(places)
}

/// Asks at each place in turn until the runtime is ready at one of them. A place that has answered is the runtime's.
async fn until_ready(
    places: Vec<(Address, Control)>,
    name: String,
    start: Duration,
) -> Result<(Address, Control, Limits), OpenError> {
    let end = Instant::now() + start;
    let mut told = false;
    let mut places = VecDeque::from(places);
    while let Some((address, control)) = places.pop_front() {
        let why = match control.status().await {
            Ok(status) if status.status() == runtime_status_response::Status::Ready => {
                return Ok((address, control, Limits::of(status)));
            }
            Ok(status) => {
                places.clear();
                format!("it says {}", status.status().as_str_name())
            }
            Err(status) => status.message().to_owned(),
        };
        if !std::mem::replace(&mut told, true) {
            tracing::info!(event = "runtime_awaited", runtime = name, %address, why);
        }
        if Instant::now() + POLL > end {
            let tried = std::iter::once(&address).chain(places.iter().map(|(other, _)| other));
            let address = tried.map(ToString::to_string).collect::<Vec<_>>().join(" or ");
            return Err(OpenError::NotReady { name, address, after: start, why });
        }
        places.push_back((address, control));
        sleep(POLL).await;
    }
    Err(OpenError::NotReady { name, address: String::new(), after: start, why: "it has no address".to_owned() })
}

impl Process {
    /// Runs what the runtime is asked.
    fn handle(&self) -> &Handle {
        self.threads.handle()
    }

    /// Loads within the runtime's own bounds, and within what loads of the type have taken before.
    async fn load_bare(
        self: &Arc<Self>,
        request: &LoadModelRequest,
        size: ByteSize,
    ) -> Result<LoadModelResponse, LoadError> {
        let Ok(_turn) = self.loading.acquire().await else {
            return Err(LoadError::new(FailureCategory::Internal, "the runtime is closed"));
        };
        let kind = (self.name.clone(), request.model_type.clone());
        let limit = self.load_times.limit(&kind, size, self.limits.load_timeout);
        let clock = LoadClock::start(&self.absence);
        match clock.within(limit, self.control.load(request.clone(), &clock)).await {
            Some(loaded) => {
                match &loaded {
                    Ok(_) => self.load_times.took(kind, size, clock.elapsed()),
                    Err(error) if error.category == FailureCategory::Network => self.missed(),
                    Err(_) => {}
                }
                loaded
            }
            None => {
                let why = match limit < self.limits.load_timeout {
                    true => "many times as long as others of its type took",
                    false => "which is the time that it gives",
                };
                let message = format!("the runtime did not load it within {} ms, {why}", limit.as_millis());
                Err(LoadError::new(FailureCategory::Timeout, message))
            }
        }
    }
}

/// The threads of a runtime. They may be dropped where nobody may wait for them.
struct Threads(Option<Tokio>);

impl Threads {
    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("they are there until they are dropped").handle()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(tokio) = self.0.take() {
            tokio.shutdown_background();
        }
    }
}
