//! Measures the cost of a hop: the same requests to the worker's own gateway, through another node's gateway, and
//! through a proxy that only passes HTTP/2 on to the worker's gateway, without TLS.
//!
//! `cargo run --release -p berth-mesh --example hop_bench [SECONDS [ROUNDS [ENVOY]]]` prints one JSON object per line. Worker,
//! gateway and proxy are processes of their own, with as many threads as there are cores, as they would be. All share one
//! machine, and the ways take turns, so figures of one run compare with each other and with nothing else; each is the
//! median of the rounds.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark: its tasks end with it")]

mod envoy;
mod load;
mod ways;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use berth_peer::pki::Authority;

use self::load::Protocol;

/// As the real program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One way to the model: a process, and where it listens.
struct Way {
    name: &'static str,
    process: Child,
    addresses: Vec<SocketAddr>,
}

impl Way {
    /// Starts this program again, as `role`.
    fn start(name: &'static str, arguments: &[&str]) -> Self {
        let me = std::env::current_exe().expect("a path");
        // It ends when its input does: with this process, however that ends.
        let mut command = Command::new(me);
        command.arg("as").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("it says where it listens");
        let addresses = line.split_whitespace().map(|address| address.parse().expect("an address")).collect();
        Self { name, process, addresses }
    }

    /// Its processor time so far, in microseconds.
    fn processor_us(&self) -> u64 {
        let stat = fs_err::read_to_string(format!("/proc/{}/schedstat", self.process.id()));
        let threads = fs_err::read_dir(format!("/proc/{}/task", self.process.id()));
        let of = |text: String| text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
        let Ok(threads) = threads else { return stat.map(of).unwrap_or(0) / 1_000 };
        let each = threads.flatten().filter_map(|thread| fs_err::read_to_string(thread.path().join("schedstat")).ok());
        each.map(of).sum::<u64>() / 1_000
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The figures of one way in one round.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// Processor time per request, of the way and of the worker.
    way_us: f64,
    worker_us: f64,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}

/// Serves as one of the ways until its input ends.
fn serve(role: &str, arguments: &[String]) {
    let runtime = runtime();
    let address = |at: usize| arguments[at].parse::<SocketAddr>().expect("an address");
    let spoken = runtime.block_on(async {
        match role {
            "holder" => {
                let (http, peer) = ways::holder(Path::new(&arguments[0])).await;
                format!("{http} {peer}")
            }
            "forwarder" => ways::forwarder(Path::new(&arguments[0]), address(1)).await.to_string(),
            _ => ways::bare(address(0)).await.to_string(),
        }
    });
    println!("{spoken}");
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    runtime.shutdown_background();
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn report(way: &str, protocol: Protocol, callers: usize, rounds: &[Figures]) {
    let median = |of: fn(&Figures) -> f64| median(rounds.iter().map(of).collect());
    println!(
        r#"{{"way":"{way}","protocol":"{}","callers":{callers},"per_second":{:.0},"p50_us":{:.1},"p99_us":{:.1},"way_cpu_us":{:.1},"worker_cpu_us":{:.1}}}"#,
        if protocol == Protocol::Rest { "rest" } else { "grpc" },
        median(|f| f.per_second),
        median(|f| f.p50_us),
        median(|f| f.p99_us),
        median(|f| f.way_us),
        median(|f| f.worker_us),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [r#as, role, rest @ ..] = &*arguments
        && r#as == "as"
    {
        return serve(role, rest);
    }
    let number = |at: usize, default: f64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (time, rounds) = (Duration::from_secs_f64(number(0, 1.0)), number(1, 5.0) as usize);
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::create(folder.path()).expect("a CA");
    let issue = |name: &str| authority.issue(&ways::worker(name), &[]).expect("issued").to_string_lossy().into_owned();
    let worker = Way::start("direct", &["holder", &issue("b")]);
    let (http, peer) = (worker.addresses[0].to_string(), worker.addresses[1].to_string());
    let mut ways = vec![Way::start("bare", &["bare", &http]), Way::start("hop", &["forwarder", &issue("a"), &peer])];
    if let Some(bin) = arguments.get(2) {
        let (process, at) = envoy::start(bin, folder.path(), worker.addresses[0]);
        ways.push(Way { name: "envoy", process, addresses: vec![at] });
    }
    let clients = runtime();
    for protocol in [Protocol::Rest, Protocol::Grpc] {
        for callers in [1, 8, 64] {
            let ways: Vec<&Way> = std::iter::once(&worker).chain(&ways).collect();
            let mut seen = vec![Vec::new(); ways.len()];
            for round in 0..=rounds {
                for (way, seen) in ways.iter().zip(&mut seen) {
                    let before = (way.processor_us(), worker.processor_us());
                    let time = if round == 0 { Duration::from_millis(200) } else { time };
                    let mut took = clients.block_on(load::run(way.addresses[0], protocol, callers, time));
                    if round == 0 {
                        continue;
                    }
                    took.sort_unstable();
                    let at = |q: f64| f64::from(took[((took.len() - 1) as f64 * q) as usize]) / 1e3;
                    let each = |us: u64| us as f64 / took.len() as f64;
                    seen.push(Figures {
                        per_second: took.len() as f64 / time.as_secs_f64(),
                        p50_us: at(0.5),
                        p99_us: at(0.99),
                        way_us: each(way.processor_us() - before.0),
                        worker_us: each(worker.processor_us() - before.1),
                    });
                }
            }
            ways.iter().zip(&seen).for_each(|(way, seen)| report(way.name, protocol, callers, seen));
        }
    }
    clients.shutdown_background();
}
