//! The engine in a loop, without any server: the ceiling.

use std::{
    path::Path,
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ort::{
    environment::Environment,
    session::Session,
    value::{DynValue, Tensor},
};

use crate::payload::{CNN, Model, TABULAR};

/// Runs of one row, one after the other, on one thread.
pub(crate) struct Engine {
    pub(crate) model: &'static str,
    pub(crate) run: Duration,
    /// Runs of 32 rows, per row.
    pub(crate) row_of_32: Duration,
    pub(crate) load: Duration,
}

/// Timed runs of each; the median is reported.
const RUNS: usize = 2_000;

pub(crate) fn measure() -> Result<Vec<Engine>> {
    [&TABULAR, &CNN].into_iter().map(measure_model).collect()
}

/// The engine's library, loaded once; found as every other program here finds it.
fn environment() -> Result<&'static Environment> {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    if let Some(environment) = ENVIRONMENT.get() {
        return Ok(environment);
    }
    let library = std::env::var_os("ORT_DYLIB_PATH").context("ORT_DYLIB_PATH does not say where the engine is")?;
    let environment = ort::init_from(library)?.build()?;
    Ok(ENVIRONMENT.get_or_init(|| environment))
}

fn measure_model(model: &'static Model) -> Result<Engine> {
    let mut session = open(Path::new(model.artifact))?;
    let run = time_runs(&mut session, model, 1)?;
    let row_of_32 = time_runs(&mut session, model, 32)? / 32;
    let mut loads: Vec<_> = (0..20).map(|_| load_time(Path::new(model.artifact))).collect::<Result<_>>()?;
    loads.sort();
    Ok(Engine { model: model.name, run, row_of_32, load: loads[loads.len() / 2] })
}

/// Session and first run: what a miss cannot do without.
pub(crate) fn load_time(artifact: &Path) -> Result<Duration> {
    let started = Instant::now();
    let _session = open(artifact)?;
    Ok(started.elapsed())
}

fn open(artifact: &Path) -> Result<Session> {
    let mut builder =
        Session::builder(environment()?)?.with_intra_threads(1).map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(builder.commit_from_file(artifact)?)
}

fn time_runs(session: &mut Session, model: &Model, rows: i64) -> Result<Duration> {
    let mut shape = model.shape.to_vec();
    shape[0] = rows;
    let values = model.values().repeat(usize::try_from(rows)?);
    let mut times = Vec::with_capacity(RUNS);
    let stop = Instant::now() + Duration::from_secs(3);
    while times.len() < RUNS && Instant::now() < stop {
        let started = Instant::now();
        let input: DynValue = Tensor::from_array((shape.clone(), values.clone()))?.into_dyn();
        let outputs = session.run(vec![(model.input, input)])?;
        std::hint::black_box(&outputs);
        drop(outputs);
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}
