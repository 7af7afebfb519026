//! The nouns of Berth: ids, units, what people declare, what workers report, and what gateways route by.
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
//! | **deployment** | what somebody wants: a model source, how many replicas (or "on demand"), where, how to roll out. Mutable; has a generation |
//! | **model card** | the immutable description of one model version in a Git repository: runtime, artifacts, code, interface, resources |
//! | **registry** | the Git repository of manifests, worker configurations and encrypted secrets that operations own |
//! | **revision** | one resolved, immutable model version of a deployment, named by a hash of everything that decides what is loaded |
//! | **alias** | a mutable name that resolves to a revision or a weighted set of them. Every deployment is one |
//! | **node** | one `berth` process of a cluster, with one or more of the roles controller, worker, gateway |
//! | **member** | a node as the others know it; members tell each other who is alive by gossip |
//! | **leader** | the controller that decides now; its term is an **epoch**, and every write of it is fenced by that |
//! | **peer** | another node, as the one who talks to it sees it |
//! | **worker** | a process that holds replicas and runs them in runtimes |
//! | **runtime** | what executes a revision (the built-in ONNX engine, later others) |
//! | **replica** | one revision on one worker |
//! | **residency** | what the worker says is true of one replica |
//! | **assignment** | the whole, numbered set of replicas that a worker should hold |
//! | **inventory** | the whole set of replicas that a worker says it holds |
//! | **gateway** | the data-plane entrance: it parks, limits and forwards requests |
//! | **route** | what a gateway knows of one deployment: which revisions share its traffic and where they are ready |
//! | **controller** | the one decider; it runs [`plan`](https://docs.rs) over a world of these nouns |
//! | **source** | where deployments come from: the API, a directory, a Git registry, later etcd, Kubernetes |
//! | **store** | the strongly consistent, watchable key-value state |
//! | **credential** | what opens a store, a repository or a registry; a worker is given a whole numbered set of them |
//! | **demand** | what a gateway tells the controller about use: who waits, who was used when |
//! | **claim** | the bytes of a worker's memory that the plan sets aside for a replica |
//! | **miss** | a request for a deployment with no ready replica |
//! | **park** | to hold a request at the gateway until its model is ready or its deadline has passed |
//!
//! # Reading order
//! [`id`], [`unit`], [`tensor`] are the atoms; [`manifest`] is the file format, [`dialect`] the other forms that convert to it, and [`deployment`] what it becomes;
//! [`revision`] → [`assignment`] → [`residency`] is the way down to a worker; [`routes`] and [`traffic`] connect
//! gateways; [`inference`] is what flows; [`status`] is what people are told.

pub mod id;
pub mod unit;

pub mod tensor;

pub mod card;
pub mod deployment;
pub mod dialect;
pub mod manifest;
pub mod origin;
pub mod revision;

pub mod assignment;
pub mod residency;
pub mod worker;

pub mod credential;
pub mod member;

pub mod routes;
pub mod traffic;

pub mod class;
pub mod event;
pub mod inference;
pub mod status;

pub use assignment::{Assignment, AssignmentChange, FromController, Placed, Serving, WorkerLimits, correlation_id};
pub use card::{ModelCard, PinnedCard};
pub use class::Class;
pub use credential::{Credential, CredentialSet, Secret};
pub use deployment::{Deployment, Replicas, Spec};
pub use event::Event;
pub use id::{DeploymentName, Digest, Generation, NameKey, Namespace, RevisionId, WorkerId};
pub use inference::{InferError, InferRequest, InferResponse, Violation};
pub use member::{Cordon, Epoch, GatewayId, Health, Member, Roles};
pub use origin::Origin;
pub use residency::{Failure, FailureCategory, Inventory, InventoryChange, Residency, Usage};
pub use revision::Revision;
pub use routes::{Route, RouteChange};
pub use tensor::{Datatype, Signature, Tensor, TensorSpec};
pub use traffic::{Demand, GatewayEvent};
pub use unit::{ByteSize, Time};
pub use worker::{Breaker, Gpu, Load, UnknownWorkers, WorkerInfo, WorkerState, WorkerTerms};
