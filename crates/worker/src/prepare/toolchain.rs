//! The programs that make Python environments, for others than model cards: functions are built with the same ones.

use std::{ffi::OsString, path::PathBuf};

use super::{Settings, interpreter::Interpreters, uv::Uv};
use crate::fault::Fault;

/// Finds `uv` and interpreters as model cards do.
#[derive(Debug)]
pub struct Toolchain {
    settings: Settings,
    home: PathBuf,
    interpreters: Interpreters,
}

impl Toolchain {
    /// `home`: folder in which `uv` may keep files.
    #[must_use]
    pub fn new(settings: Settings, home: PathBuf) -> Self {
        Self { settings, home, interpreters: Interpreters::default() }
    }

    /// The `uv` program.
    ///
    /// # Errors
    /// The remedy, where there is none.
    pub fn uv(&self) -> Result<PathBuf, Fault> {
        Uv::find(&self.settings, self.home.clone()).map(|uv| uv.program().to_owned())
    }

    /// The interpreter with exactly this MAJOR.MINOR.
    ///
    /// # Errors
    /// The remedy, where there is none.
    pub async fn python(&self, version: &str) -> Result<PathBuf, Fault> {
        // `uv` takes longer to tell of it than a function to start.
        if let Some(known) = self.interpreters.known(version, false) {
            return Ok(known);
        }
        let managed = match Uv::find(&self.settings, self.home.clone()) {
            Ok(uv) => uv.python(version, &self.settings).await,
            Err(_) => None,
        };
        self.interpreters.find(version, false, &self.settings, managed).await
    }

    /// Variables that find programs and reach the network; no secret of this process.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.settings.surroundings()
    }

    /// Settings of `uv` that say where packages are.
    #[must_use]
    pub fn package_settings(&self) -> Vec<(OsString, OsString)> {
        let mut settings = self.settings.for_uv();
        if let Some(index) = &self.settings.package_index {
            settings.retain(|(name, _)| name != "UV_DEFAULT_INDEX");
            settings.push(("UV_DEFAULT_INDEX".into(), index.into()));
        }
        settings
    }
}
