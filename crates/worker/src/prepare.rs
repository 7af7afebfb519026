//! What a model card's model needs beside its artifact: its code at the exact commit, and an environment with its
//! packages.

use std::{fmt, path::PathBuf, sync::Arc};

use berth_spec::ByteSize;

/// All that a card's model is loaded with, beside the artifact. What it names stays on disk while it lives: keep it for
/// as long as the model's process may be started again.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The root of the checkout, shared by all models of that commit: nothing may write to it.
    pub code: PathBuf,
    /// The interpreter of the environment, shared by all models with the same packages.
    pub python: PathBuf,
    /// What `artifacts.config_path` names, on disk.
    pub config: Option<PathBuf>,
    /// The environment's content hash.
    pub environment: String,
    /// What the environment takes on disk.
    pub environment_size: ByteSize,
    /// Things worth knowing that did not stop it, for the replica's note.
    pub notes: Vec<String>,
    /// Keeps all of it on disk.
    #[expect(dead_code, reason = "it is held, not read")]
    pin: Pins,
}

impl Prepared {
    /// From folders that the caller looks after: a card that is run where it lies.
    #[must_use]
    pub fn of(code: impl Into<PathBuf>, python: impl Into<PathBuf>) -> Self {
        Self {
            code: code.into(),
            python: python.into(),
            config: None,
            environment: String::new(),
            environment_size: ByteSize::ZERO,
            notes: Vec::new(),
            pin: Pins::default(),
        }
    }
}

/// Whatever keeps something on disk, until the last clone goes.
#[derive(Clone, Default)]
struct Pins(Vec<Arc<dyn std::any::Any + Send + Sync>>);

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pins({})", self.0.len())
    }
}
