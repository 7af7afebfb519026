//! The operator of Kubernetes: turns what people write into Deployments and Services, and keeps them so.
//!
//! ```text
//!  CLOpsDeployment ──▶ ModelDeployment ──▶ Deployment, Service, …; AsyncAPI       each owns what is right of it
//!        ▲                   ▲                     │                    │
//!        └───── status ──────┴────── status ───────┴────────────────────┘
//!
//!  API server ──watch──▶ mirror ──▶ brain: world → objects to apply, status, events
//!       ▲                             │
//!       └──── server-side apply ◀─────┘  (queue: one at a time per object, back-off after errors)
//! ```
//! The brain does no I/O: a decision without anything in it is written nowhere, so that an operator that starts beside
//! 1,000 objects that are as they should be writes nothing. What is rendered depends on the object's spec and on its
//! [`render::Record`], never on the operator's own version.
//!
//! Reading order: [`api`], the custom resources; [`conversion`] between their versions; [`fleet`], models without pods; [`render`]; [`compare`]; [`brain`]; [`admission`]; [`upgrade`], newer rules for old objects;
//! [`queue`], [`election`] and [`line_pace`], three more state machines; [`driver`], which talks to the API server; [`metrics`],
//! its metrics; [`install`], what a cluster is given; [`picker`], a process of its own that Gateways ask for a pod.

pub mod api;
pub mod compare;
pub mod conversion;
pub mod fleet;
pub mod render;

pub mod admission;
pub mod brain;
pub mod upgrade;

pub mod election;
pub mod line_pace;
pub mod queue;

pub mod driver;
pub mod install;
pub mod metrics;
pub mod picker;

/// Owner of the fields that the operator applies.
pub const FIELD_MANAGER: &str = "berth-operator";
