//! The Git registry of models: which model runs where, as files of a repository that operations own.
//!
//! ```text
//! Tree (commit or folder) ──▶ Validator: six steps ──▶ Report ──▶ Desired ──▶ to_hub ──▶ the rest of Berth
//!                                  │                     └──▶ render: people, JSON, SARIF, JUnit
//!                                  └── Remotes: model repositories, asked once per pass; cards, read once per commit
//! ```
//!
//! A commit is accepted or rejected as a whole, by the same code in the controller, on the command line and in the hook
//! of a server. All calls block. Here nothing is written to a registry, and nobody is told: that is for others.

pub mod problem;

mod document;

pub mod contract;
pub mod matrix;
pub mod schema;

mod manifest;
pub mod settings;
mod worker;

mod layout;
mod tree;

mod aliases;
mod card;
mod cards;
mod compatibility;
mod functions;
mod ledger;
mod parse;
mod remotes;
mod signature;

mod validate;

mod desired;
mod hub;
mod report;

pub mod render;

pub mod actual;
pub mod commit_status;
pub mod error_file;
pub mod notify;
pub mod write_back;

pub use card::{CardRules, CheckedCard, check_card};
pub use desired::{Change, Desired, DesiredDeployment, SecretFile};
pub use document::MAX_FILE_BYTES;
pub use hub::to_hub;
pub use layout::{Environment, FOLDERS};
pub use manifest::{CardRef, DeploymentConfig, DeploymentManifest, ManifestMetadata};
pub use matrix::Matrix;
pub use parse::vault_of_worker;
pub use problem::{Audience, Outcome, Problem, Severity, Step};
pub use remotes::{CredentialsFor, Remotes};
pub use report::{Counts, Report};
pub use settings::Settings;
pub use signature::signer;
pub use tree::Tree;
pub use validate::{ALLOW_EMPTY, MATRIX_FILE, Pass, Validator, day};
pub use worker::{Capacity, EvictionPolicy, Strategy, WorkerConfig};
