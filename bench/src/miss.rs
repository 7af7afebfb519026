//! From a request for a cold model to its answer, with 10,000 models registered, against the engine's own load.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    Arguments, engine,
    memory::{infer_once, name, register},
    payload::TABULAR,
    server::Server,
};

/// Medians and 99th percentiles.
pub(crate) struct Miss {
    pub(crate) registered: usize,
    /// The engine alone: open the file, make a session.
    pub(crate) engine: Duration,
    /// Room is free.
    pub(crate) free: (Duration, Duration),
    /// Every load must evict another model first.
    pub(crate) evicting: (Duration, Duration),
}

const REGISTERED: usize = 10_000;
const SAMPLES: usize = 200;
/// Misses before anything is timed.
const FILLING: usize = 300;

pub(crate) async fn measure(arguments: &Arguments) -> Result<Miss> {
    let free = misses(arguments, &[]).await?;
    // Room for some 200 of these models, fewer than are asked for before anything is timed: every timed miss evicts. With
    // much less room a miss would wait for the planner's least residence (0.1 s), which is not what is measured here.
    let evicting = misses(arguments, &["--memory", "16MiB"]).await?;
    let mut loads: Vec<_> =
        (0..SAMPLES).map(|_| engine::load_time(Path::new(TABULAR.artifact))).collect::<Result<_>>()?;
    Ok(Miss { registered: REGISTERED, engine: quantiles(&mut loads).0, free, evicting })
}

async fn misses(arguments: &Arguments, more: &[&str]) -> Result<(Duration, Duration)> {
    let server = Server::berth(&arguments.berth, &[], more).await?;
    let (api, http) = (server.api.context("a control API")?, server.http.context("an HTTP port")?);
    for start in (0..REGISTERED).step_by(1_000) {
        register(api, TABULAR.artifact.as_ref(), start..start + 1_000).await?;
    }
    let mut times = Vec::new();
    for index in 0..SAMPLES + FILLING {
        let took = infer_once(http, &name(index * 37 % REGISTERED)).await?;
        // The first ones measure the model and fill the memory.
        if index >= FILLING {
            times.push(took);
        }
    }
    Ok(quantiles(&mut times))
}

fn quantiles(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
