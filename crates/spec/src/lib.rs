//! The nouns of Berth: ids, units, manifests, deployments, reports of workers, routes of gateways.
//!
//! Nothing here does I/O, reads a clock, draws a random number or waits. Every other crate speaks in these types;
//! protobuf, HTTP and file formats are converted to them at the edge.
//!
//! # Glossary
//!
//! One word, one meaning, in code, API, command line, metrics and documentation.
//!
//! | word | meaning |
//! |---|---|
//! | **deployment** | a declared model: its source, number of replicas (or "on demand"), placement and rollout. Mutable; has a generation |
//! | **manifest** | the text that declares a deployment; its **hub version** is `berth.dev/v1` |
//! | **dialect** | another form of manifest, which converts to the hub version and back |
//! | **model card** | the immutable description of one model version in a Git repository: runtime, artifacts, code, interface, resources |
//! | **registry** | the Git repository of manifests, worker configurations and encrypted secrets that operations own |
//! | **revision** | one resolved, immutable model version of a deployment, named by a hash of everything that decides what is loaded |
//! | **alias** | a declared name that leads to deployments of its namespace, by weight |
//! | **node** | one `berth` process of a cluster, with one or more of the roles controller, worker, gateway |
//! | **member** | a node as the others see it; members spread each other's health by gossip |
//! | **leader** | the controller that decides now; its term is an **epoch**, and every write of it is fenced by that |
//! | **peer** | the other node of a connection |
//! | **worker** | a process that holds replicas and runs them in runtimes |
//! | **format** | the kind of a model's artifact, an open name with an optional version: `onnx`, `sklearn:1` |
//! | **runtime** | the engine that executes revisions of some formats: built-in ONNX, or a process for a model card. Has a capacity of its own |
//! | **replica** | one revision on one worker |
//! | **residency** | the state of one replica, as its worker reports it |
//! | **assignment** | the whole, numbered set of replicas that a worker should hold |
//! | **inventory** | the whole set of replicas that a worker reports |
//! | **gateway** | the data-plane entrance: it parks, limits and forwards requests |
//! | **route** | a gateway's knowledge of one deployment: the revisions that share its traffic and the workers where they are ready |
//! | **controller** | the one decider; it runs [`plan`](https://docs.rs) over a world of these nouns |
//! | **source** | an origin of deployments: the API, a directory, a Git registry, keys in etcd, Kubernetes |
//! | **store** | the strongly consistent, watchable key-value state |
//! | **credential** | access to a store, a repository or a registry; a worker is given a whole numbered set of them |
//! | **demand** | a gateway's report of use: requests that wait, times of last use |
//! | **claim** | the bytes of a worker's memory that the plan sets aside for a replica |
//! | **miss** | a request for a deployment with no ready replica |
//! | **park** | to hold a request at the gateway until its model is ready or its deadline has passed |
//!
//! # Reading order
//! [`id`], [`unit`], [`tensor`] are the atoms; [`manifest`] is the file format, [`dialect`] the other forms that convert to
//! it, [`deployment`] the result; [`revision`] → [`assignment`] → [`residency`] is the way down to a worker; [`routes`] and
//! [`traffic`] connect gateways; [`inference`] flows through them; [`status`] is for people.

pub mod id;
pub mod isolation;
pub mod network;
pub mod unit;

pub mod tensor;

pub mod alias;
pub mod card;
pub mod deployment;
pub mod dialect;
pub mod format;
pub mod manifest;
pub mod opaque;
pub mod origin;
pub mod revision;

pub mod assignment;
pub mod residency;
pub mod worker;

pub mod client_certificate;
pub mod credential;
pub mod member;

pub mod routes;
pub mod traffic;

pub mod circuit;
pub mod class;
pub mod event;
pub mod inference;
pub mod limits;
pub mod meter;
pub mod shorten;
pub mod status;

pub use alias::Alias;
pub use assignment::{Assignment, AssignmentChange, FromController, Placed, Serving, WorkerLimits, correlation_id};
pub use card::{ModelCard, PinnedCard};
pub use class::Class;
pub use client_certificate::{ClientCertificate, SubjectName};
pub use credential::{Credential, CredentialSet, Secret};
pub use deployment::{Deployment, Replicas, Spec};
pub use event::Event;
pub use format::{FormatSupport, ModelFormat};
pub use id::{DeploymentName, Digest, Generation, NameKey, Namespace, RevisionId, WorkerId};
pub use inference::{InferError, InferRequest, InferResponse, Violation};
pub use isolation::{Isolation, IsolationOffer};
pub use limits::{UseLimit, UseLimits};
pub use member::{Cordon, Epoch, GatewayId, Health, Member, Roles};
pub use opaque::OpaqueModel;
pub use origin::Origin;
pub use residency::{Failure, FailureCategory, Inventory, InventoryChange, Residency, Usage};
pub use revision::Revision;
pub use routes::{Route, RouteChange};
pub use shorten::shortened;
pub use tensor::{Datatype, Signature, Tensor, TensorSpec};
pub use traffic::{Demand, GatewayEvent, RevisionOutcomes};
pub use unit::{ByteSize, InvalidSize, Time};
pub use worker::{Breaker, Gpu, GpuLoad, Load, RuntimeInfo, UnknownWorkers, WorkerInfo, WorkerState, WorkerTerms};
