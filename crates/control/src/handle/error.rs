//! Errors of the control plane.

use std::time::Duration;

use berth_spec::{Class, DeploymentName, Origin, WorkerId};

use crate::store::{Rev, StoreError};

/// Reason why the control plane refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No deployment has this name.
    #[error("there is no deployment {0:?}: `berth get deployments` lists them")]
    NotFound(DeploymentName),
    /// No alias has this name.
    #[error("there is no alias {0:?}: `berth get aliases` lists them")]
    NoAlias(DeploymentName),
    /// A deployment and an alias want the same name.
    #[error(
        "{name:?} is the name of {by} already, and clients could not tell them apart: choose another name, or delete {by}"
    )]
    NameInUse {
        /// The name that both want.
        name: DeploymentName,
        /// The one that has it: `a deployment` or `an alias`.
        by: &'static str,
    },
    /// No function has this name.
    #[error("there is no function {0:?}: `berth get functions` lists them")]
    NoFunction(DeploymentName),
    /// A function's spec is wrong.
    #[error("the function {name} is wrong: {message}")]
    WrongFunction {
        /// Name of the function that was to be declared.
        name: DeploymentName,
        /// Every mistake by its path.
        message: String,
    },
    /// This controller runs no functions.
    #[error("this controller runs no functions: give the nodes with the role controller the role gateway, too")]
    NoFunctions,
    /// No worker of this name is attached.
    #[error("there is no worker {0:?}: `berth get workers` lists them")]
    NoWorker(WorkerId),
    /// Another process goes by the name of this worker: it started later, and is connected.
    #[error(
        "another process with the name {0:?} is connected, and started later than this one: stop one of them, or give it \
         another name with --name"
    )]
    NameTaken(WorkerId),
    /// The registry does not list the worker, and refuses unlisted ones.
    #[error(
        "the registry does not name the worker {0:?}, and no other workers are let in: add it to the registry's workers \
         folder, or give it another name with --name"
    )]
    Unlisted(WorkerId),
    /// Another source declared it.
    #[error(
        "{name:?} belongs to {}, not to {}: change it there, or take it over with --force",
        owner_text(owner),
        owner_text(by)
    )]
    Owned {
        /// Name of the deployment.
        name: DeploymentName,
        /// Source that declared it last.
        owner: Origin,
        /// Source that wanted to change it.
        by: Origin,
    },
    /// Somebody changed it since the caller read it.
    #[error("{}", stale(.name, .expected, .found))]
    Stale {
        /// Name of the deployment.
        name: DeploymentName,
        /// Revision that the caller had read.
        expected: Rev,
        /// Current revision; [`Rev::NONE`] if there is no entry.
        found: Rev,
    },
    /// Others changed it again and again while this was tried.
    #[error("{0:?} is being changed by others all the time: try again")]
    Contended(DeploymentName),
    /// A watch did not keep up.
    #[error("the watch fell behind: list again and watch from there")]
    Lagged,
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The driver did not answer in time.
    #[error("the control plane is busy: try again in {} s", retry_in.as_secs())]
    Busy {
        /// A guess of when it is worth trying again.
        retry_in: Duration,
    },
    /// The control plane is stopping, or its term has ended: another may answer in a second.
    #[error("the control plane is stopping")]
    Stopped,
}

/// The words of [`Error::Stale`].
fn stale(name: &DeploymentName, expected: &Rev, found: &Rev) -> String {
    if *found == Rev::NONE {
        return format!(
            "{name:?} is not there any more, and the change is to its resource version {expected}: leave out \
             metadata.resourceVersion or If-Match to declare it again"
        );
    }
    format!(
        "{name:?} was changed meanwhile: expected resource version {expected}, found {found}; read it again and repeat \
         the change"
    )
}

impl Error {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::NotFound(_) | Self::NoAlias(_) | Self::NoFunction(_) | Self::NoWorker(_) => Class::NotFound,
            Self::WrongFunction { .. } => Class::Invalid,
            Self::NameInUse { .. }
            | Self::NameTaken(_)
            | Self::Unlisted(_)
            | Self::Owned { .. }
            | Self::Stale { .. }
            | Self::NoFunctions
            | Self::Lagged => Class::Conflict,
            Self::Contended(_) => Class::Waiting { retry_in: Duration::from_millis(100) },
            Self::Store(error) => error.class(),
            Self::Busy { retry_in } => Class::Waiting { retry_in: *retry_in },
            Self::Stopped => Class::Waiting { retry_in: Duration::from_secs(1) },
        }
    }

    /// Reason in PascalCase for clients and metrics: `NotFound`, `OwnedElsewhere`, ….
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) | Self::NoAlias(_) | Self::NoFunction(_) | Self::NoWorker(_) => "NotFound",
            Self::WrongFunction { .. } => "Invalid",
            Self::NoFunctions => "NoFunctions",
            Self::NameInUse { .. } => "NameInUse",
            Self::NameTaken(_) => "NameTaken",
            Self::Unlisted(_) => "WorkerUnlisted",
            Self::Owned { .. } => "OwnedElsewhere",
            Self::Stale { .. } => "ResourceVersionChanged",
            Self::Contended(_) => "Contended",
            Self::Lagged => "WatchExpired",
            Self::Store(StoreError::Compacted { .. }) => "WatchExpired",
            Self::Store(_) => "StoreFailed",
            Self::Busy { .. } => "Busy",
            Self::Stopped => "ShuttingDown",
        }
    }
}

fn owner_text(origin: &Origin) -> String {
    match origin.kind() {
        "api" => "the API".to_owned(),
        Origin::DIRECTORY => format!("the folder {}", origin.id()),
        Origin::GIT => format!("the registry {}", origin.id()),
        kind => format!("the {kind} source {}", origin.id()),
    }
}
