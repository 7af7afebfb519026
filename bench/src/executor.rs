//! The cost of the executor: the same requests straight to an echo server, through a bare proxy, and through `berth executor` with its
//! metrics, limits and breaker.

use std::{
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    Arguments,
    load::{self, Figures},
    payload::TABULAR,
    server::{Server, free, scratch},
};

/// No proxy.
pub(crate) const DIRECT: &str = "no proxy";
/// See [`crate::cluster::proxy`].
pub(crate) const BARE: &str = "bare proxy";
/// `berth executor`.
pub(crate) const EXECUTOR: &str = "executor";

/// Callers of each table line.
const CALLERS: [usize; 2] = [1, 64];

/// Each is measured so often, in turn.
const ROUNDS: usize = 3;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) protocol: &'static str,
    pub(crate) callers: usize,
    pub(crate) way: &'static str,
    pub(crate) figures: Figures,
}

/// Measures all of them in one run.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (protocol, role) in [("REST", "echo-http"), ("gRPC", "echo-grpc")] {
        let echo = Server::echo(role).await?;
        let Some(behind) = echo.http.or(echo.grpc) else { continue };
        let (bare, _bare) = bare(behind).await?;
        let (executor, _executor) = executor(&arguments.berth, behind).await?;
        let request = if protocol == "REST" { TABULAR.json() } else { TABULAR.grpc() };
        for callers in CALLERS {
            let ways = [(DIRECT, behind), (BARE, bare), (EXECUTOR, executor)];
            let mut rounds: Vec<Vec<Figures>> = ways.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for ((way, address), seen) in ways.iter().zip(&mut rounds) {
                    let figures = load::run(*address, &request, callers, arguments.seconds).await?;
                    eprintln!("{protocol} {way:12} c={callers:<2} {figures}");
                    seen.push(figures);
                }
            }
            for ((way, _), mut seen) in ways.into_iter().zip(rounds) {
                seen.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
                let middle = seen.len() / 2;
                rows.push(Row { protocol, callers, way, figures: seen.swap_remove(middle) });
            }
        }
    }
    Ok(rows)
}

async fn bare(behind: SocketAddr) -> Result<(SocketAddr, Server)> {
    let address = free()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["proxy", &address.to_string(), &behind.to_string()]);
    let server = Server::spawn(BARE, &mut command, scratch("proxy")?)?;
    listens(address).await?;
    Ok((address, server))
}

async fn executor(berth: &Path, behind: SocketAddr) -> Result<(SocketAddr, Server)> {
    let (address, admin, files) = (free()?, free()?, scratch("executor")?);
    let file = files.join("executor.yaml");
    let config = format!(
        "ports:\n  - {{name: bench, listen: '{address}', upstream: '{behind}', paths: ['/v2/models/{{model}}/infer'], \
         breaker: {{failures: 5, openFor: 1s}}}}\nadmin: {{listen: '{admin}'}}\n"
    );
    fs_err::write(&file, config)?;
    let server = Server::spawn(EXECUTOR, Command::new(berth).arg("executor").arg("--config").arg(&file), files)?;
    listens(address).await?;
    Ok((address, server))
}

async fn listens(address: SocketAddr) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(Instant::now() < end, "nobody listens at {address}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
