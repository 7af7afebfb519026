//! Requests per second and latencies, at three concurrencies, of every server for every protocol it speaks.

use anyhow::Result;

use crate::{
    Arguments,
    cores::SeparateCores,
    load::{self, Figures, Request},
    payload::{CNN, Model, TABULAR},
    server::Server,
};

/// One line of the table.
pub(crate) struct Row {
    pub(crate) model: &'static str,
    pub(crate) protocol: &'static str,
    pub(crate) concurrency: usize,
    pub(crate) server: &'static str,
    /// The figures, or why there are none.
    pub(crate) figures: Result<Figures, String>,
}

/// All lines.
pub(crate) struct Throughput {
    /// Of servers that share the cores with the load generator.
    pub(crate) rows: Vec<Row>,
    /// Of bare echo servers and Berth with many callers, where the load generator has a core of its own.
    pub(crate) separate: Vec<Row>,
}

pub(crate) const CONCURRENCIES: [usize; 3] = [1, 8, 64];

/// Every protocol and concurrency is measured on all servers before the next one, so that a slow minute of the machine
/// hits all of them. All servers are up all the time; those not under load are idle.
pub(crate) async fn measure(arguments: &Arguments) -> Result<Throughput> {
    let mut servers = vec![
        Server::echo("echo-http").await?,
        Server::echo("echo-grpc").await?,
        Server::berth(&arguments.berth, &[&TABULAR, &CNN], &[]).await?,
    ];
    if let Some(binary) = &arguments.beside {
        let mut server = Server::berth(binary, &[&TABULAR, &CNN], &[]).await?;
        server.name = "beside";
        servers.push(server);
    }
    if let Some(bin) = &arguments.mlserver {
        servers.push(Server::mlserver(bin).await?);
    }
    if let Some(bin) = &arguments.triton {
        servers.push(Server::triton(bin).await?);
    }
    let mut rows = Vec::new();
    for model in [&TABULAR, &CNN] {
        for protocol in ["REST-JSON", "REST-binary", "gRPC"] {
            for concurrency in CONCURRENCIES {
                if !is_wanted(arguments, model, protocol, concurrency) {
                    continue;
                }
                for server in &servers {
                    if let Some(figures) = one(arguments, server, model, protocol, concurrency).await {
                        let told = figures.as_ref().map_or_else(|_| "failed".to_owned(), Figures::to_string);
                        eprintln!("{:12} {protocol:11} c={concurrency:<2} {:10} {told}", model.name, server.name);
                        rows.push(Row { model: model.name, protocol, concurrency, server: server.name, figures });
                    }
                }
            }
        }
    }
    Ok(Throughput { rows, separate: separate(arguments, &servers).await? })
}

fn is_wanted(arguments: &Arguments, model: &Model, protocol: &str, concurrency: usize) -> bool {
    let told = [model.name, protocol, &concurrency.to_string()];
    arguments.only.iter().all(|wanted| told.contains(&wanted.as_str()))
}

async fn separate(arguments: &Arguments, servers: &[Server]) -> Result<Vec<Row>> {
    let (mut rows, concurrency) = (Vec::new(), CONCURRENCIES[2]);
    for protocol in ["REST-JSON", "gRPC"] {
        for server in
            servers.iter().filter(|server| ["axum echo", "tonic echo", "Berth", "beside"].contains(&server.name))
        {
            if !is_wanted(arguments, &TABULAR, protocol, concurrency) {
                continue;
            }
            let Some(_cores) = SeparateCores::of(server)? else { return Ok(rows) };
            if let Some(figures) = one(arguments, server, &TABULAR, protocol, concurrency).await {
                let told = figures.as_ref().map_or_else(|_| "failed".to_owned(), Figures::to_string);
                eprintln!("own core     {protocol:11} c={concurrency:<2} {:10} {told}", server.name);
                rows.push(Row { model: TABULAR.name, protocol, concurrency, server: server.name, figures });
            }
        }
    }
    Ok(rows)
}

/// `None` where the server does not speak the protocol.
async fn one(
    arguments: &Arguments,
    server: &Server,
    model: &Model,
    protocol: &str,
    concurrency: usize,
) -> Option<Result<Figures, String>> {
    let (address, request): (_, Request) = match protocol {
        "REST-JSON" => (server.http?, model.json()),
        "REST-binary" if server.binary => (server.http?, model.binary()),
        "gRPC" => (server.grpc?, model.grpc()),
        _ => return None,
    };
    Some(load::run(address, &request, concurrency, arguments.seconds).await.map_err(|error| format!("{error:#}")))
}
