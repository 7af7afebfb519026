//! The costs of a cluster and the time that it takes to recover, on one machine: real nodes over a real etcd, on ports of their own.
//!
//! * `hop`: a gateway forwards to the worker of another node, beside Envoy and a bare HTTP/2 proxy in the same place, and
//!   beside no proxy.
//! * `stream`: how soon the messages of a stream pass a gateway, and a gateway and a hop.
//! * `recovery`: one of three nodes is killed under load; and the leader.
//! * `registered`: memory of a controller and of a gateway with 100,000 deployments.
//! * `change`: bytes and time for one change with 1,000 workers.

mod change;
mod fleet;
pub(crate) mod hop;
pub(crate) mod proxy;
mod recovery;
mod registered;
mod report;
mod stream;

use anyhow::Result;

use crate::Arguments;

/// Runs the parts that were asked for and gives the page.
pub(crate) async fn measure(arguments: &Arguments) -> Result<String> {
    let parts: Vec<_> = arguments.parts.iter().filter(|part| *part != "cluster").collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| *wanted == part);
    let mut report = report::Report::new()?;
    if wants("hop") {
        report.hop(&hop::measure(arguments).await?);
    }
    if wants("stream") {
        report.stream(&stream::measure(arguments).await?);
    }
    if wants("recovery") {
        report.recovery(&recovery::measure(arguments).await?);
    }
    if wants("registered") {
        report.registered(&registered::measure(arguments).await?);
    }
    if wants("change") {
        let (_etcd, store) = fleet::store().await?;
        report.change(&change::measure(store).await?);
    }
    Ok(report.finish())
}
