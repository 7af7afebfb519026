//! `docs/benchmarks.md`: the tables, the machine, and where each bar of the design stands.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;

use crate::{
    auth,
    engine::Engine,
    executor,
    memory::Memory,
    miss::Miss,
    overload::Overload,
    planning::Plan,
    python::Measured,
    restart::{self, Restart},
    throughput::{CONCURRENCIES, Row, Throughput},
};

/// The page while it is written.
pub(crate) struct Page {
    text: String,
    bars: Vec<(String, String, bool)>,
}

impl Page {
    pub(crate) fn new() -> Result<Self> {
        let text = format!(
            "# Benchmarks\n\nWritten by `cargo xtask bench`, all of it in one run on one machine: {}.\n\
             The load generator runs on the same cores as the servers unless said otherwise, so a server never has all of them; compare rows with each other, \
             not with other machines. Latencies are in microseconds (µs) at the client. Every server runs the same ONNX file in ONNX Runtime with one thread per run (the versions are those of bench/*/requirements.txt).\n",
            machine()?
        );
        Ok(Self { text, bars: Vec::new() })
    }

    fn bar(&mut self, what: impl Into<String>, stands: impl Into<String>, met: bool) {
        self.bars.push((what.into(), stands.into(), met));
    }

    pub(crate) fn throughput(&mut self, measured: &Throughput, engines: &[Engine]) {
        self.text.push_str("\n## Throughput and latency\n");
        for engine in engines {
            let model = engine.model;
            let _ = write!(
                self.text,
                "\n### {model}\n\nThe engine in a loop, no server: {} per run of one row ({:.0} runs/s on one core), {} per row in runs of 32; {} to load.\n\n\
                 | protocol | callers | server | requests/s | p50 µs | p99 µs |\n|---|---|---|---|---|---|\n",
                micros(engine.run),
                1.0 / engine.run.as_secs_f64(),
                micros(engine.row_of_32),
                micros(engine.load),
            );
            self.rows(measured.rows.iter().filter(|row| row.model == model));
        }
        if !measured.separate.is_empty() {
            self.text.push_str(
                "\n### The load generator on a core of its own\n\nAbove, threads of the server and the load generator wait for a core that another one \
                 of them has, perhaps until the kernel's next tick (4 ms), which decides about the slowest percent. Here the load generator has \
                 one core, and the server the others. The model is iris.\n\n\
                 | protocol | callers | server | requests/s | p50 µs | p99 µs |\n|---|---|---|---|---|---|\n",
            );
            self.rows(measured.separate.iter());
        }
        self.throughput_bars(measured, engines);
    }

    fn rows<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) {
        for row in rows {
            let (protocol, callers, server) = (row.protocol, row.concurrency, row.server);
            let _ = match &row.figures {
                Ok(figures) => writeln!(
                    self.text,
                    "| {protocol} | {callers} | {server} | {:.0} | {} | {} |",
                    figures.per_second,
                    plain(figures.p50),
                    plain(figures.p99)
                ),
                Err(error) => writeln!(self.text, "| {protocol} | {callers} | {server} | failed: {error} | | |"),
            };
        }
    }

    pub(crate) fn python(&mut self, all: &[Measured]) {
        self.text.push_str(
            "\n## Models of Python's frameworks\n\n\
             Over HTTP/1.1, one row in each request, in the JSON that users of each server send. Every server runs the model in one process. \
             Berth is `berth serve` without further settings; Triton's python backend and BentoML join requests with their batchers, and MLServer \
             does as it does unless it is told otherwise.\n\n\
             | model | callers | server | requests/s | p50 µs | p99 µs |\n|---|---|---|---|---|---|\n",
        );
        for measured in all {
            let name = measured.kind.name;
            let _ = writeln!(self.text, "| {name} | 1 | none: the framework's call | | {} | |", plain(measured.bare));
            for row in &measured.rows {
                let (callers, server) = (row.concurrency, row.server);
                let _ = match &row.figures {
                    Ok(figures) => writeln!(
                        self.text,
                        "| {name} | {callers} | {server} | {:.0} | {} | {} |",
                        figures.per_second,
                        plain(figures.p50),
                        plain(figures.p99)
                    ),
                    Err(error) => writeln!(self.text, "| {name} | {callers} | {server} | failed: {error} | | |"),
                };
            }
        }
        self.text.push('\n');
        for measured in all {
            let _ = writeln!(self.text, "* {}: {}.", measured.kind.name, measured.kind.told);
        }
        for measured in all {
            self.python_bars(measured);
        }
    }

    fn python_bars(&mut self, measured: &Measured) {
        let name = measured.kind.name;
        let figures = |server: &str, callers: usize| {
            let mut rows = measured.rows.iter();
            rows.find(|row| row.server == server && row.concurrency == callers)
                .and_then(|row| row.figures.as_ref().ok())
        };
        let most = CONCURRENCIES[2];
        if let (Some(berth), Some(peer)) = (figures("Berth", most), figures("MLServer", most)) {
            let ratio = berth.per_second / peer.per_second;
            self.bar(format!("{name}, 64 callers: at least 10× MLServer"), format!("{ratio:.1}×"), ratio >= 10.0);
        }
        let others =
            ["Triton", "BentoML"].iter().filter_map(|server| Some((server, figures(server, most)?.per_second)));
        let best = others.max_by(|one, other| one.1.total_cmp(&other.1));
        if let (Some(berth), Some((server, rate))) = (figures("Berth", most), best) {
            let ratio = berth.per_second / rate;
            let what = format!("{name}, 64 callers: at least 2× the best of the others");
            self.bar(what, format!("{ratio:.1}× {server}"), ratio >= 2.0);
        }
        if let Some(berth) = figures("Berth", 1) {
            let ratio = berth.p50.as_secs_f64() / measured.bare.as_secs_f64();
            let what = format!("{name}, one caller: p50 at most 1.3 times the framework's own call");
            self.bar(what, format!("{ratio:.2} times"), ratio <= 1.3);
        }
    }

    fn throughput_bars(&mut self, measured: &Throughput, engines: &[Engine]) {
        let (rows, most) = (&measured.rows, CONCURRENCIES[2]);
        let find = |rows: &'_ [Row], protocol: &str, server: &str| {
            let sought = ("iris", protocol, most, server);
            let mut rows = rows.iter();
            let row = rows.find(|row| (row.model, row.protocol, row.concurrency, row.server) == sought);
            row.and_then(|row| row.figures.as_ref().ok()).copied()
        };
        let iris = |protocol: &str, server: &str| find(rows, protocol, server);
        if let (Some(berth), Some(echo)) = (iris("gRPC", "Berth"), iris("gRPC", "tonic echo")) {
            let share = berth.per_second / echo.per_second;
            self.bar(
                "gRPC, 64 callers: at least 95 % of the bare tonic echo",
                format!("{:.1} %", share * 100.0),
                share >= 0.95,
            );
            let times = berth.p99.as_secs_f64() / echo.p99.as_secs_f64();
            self.bar(
                "gRPC, 64 callers: p99 at most 1.2 times that of the bare tonic echo",
                format!("{times:.2} times"),
                times <= 1.2,
            );
        }
        let separate = |server| find(&measured.separate, "gRPC", server);
        if let (Some(berth), Some(echo)) = (separate("Berth"), separate("tonic echo")) {
            let times = berth.p99.as_secs_f64() / echo.p99.as_secs_f64();
            self.bar(
                "gRPC, 64 callers, the load generator on a core of its own: p99 at most 1.2 times that of the bare tonic echo",
                format!("{times:.2} times"),
                times <= 1.2,
            );
        }
        for protocol in ["REST-JSON", "gRPC"] {
            if let (Some(berth), Some(beside)) = (iris(protocol, "Berth"), iris(protocol, "beside")) {
                let share = berth.per_second / beside.per_second;
                self.bar(
                    format!("{protocol}, 64 callers: at least 95 % of the binary beside it"),
                    format!("{:.1} %", share * 100.0),
                    share >= 0.95,
                );
            }
            for (peer, times) in [("MLServer", 20.0), ("Triton", 5.0)] {
                if let (Some(berth), Some(peer_figures)) = (iris(protocol, "Berth"), iris(protocol, peer)) {
                    let ratio = berth.per_second / peer_figures.per_second;
                    self.bar(
                        format!("{protocol}, 64 callers: at least {times:.0}× {peer}"),
                        format!("{ratio:.1}×"),
                        ratio >= times,
                    );
                }
            }
        }
        if let Some(engine) = engines.iter().find(|engine| engine.model == "convolutions") {
            let best = rows.iter().filter(|row| row.model == "convolutions" && row.server == "Berth");
            let best = best
                .filter_map(|row| Some((row.figures.as_ref().ok()?.per_second, row)))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((per_second, row)) = best {
                let share = per_second * engine.run.as_secs_f64();
                let stands = format!("{:.0} % ({}, {} callers)", share * 100.0, row.protocol, row.concurrency);
                self.bar("CNN: at least 95 % of the engine in a loop on one core", stands, share >= 0.95);
            }
        }
    }

    pub(crate) fn memory(&mut self, memory: &Memory) {
        self.text.push_str(
            "\n## Many models on one node\n\nOn-demand deployments, declared through the API, each with its own name. \
             The process's whole resident memory once it has nothing to do; the figure per model is what it grew by over the \
             process with one model.\n\n\
             | registered | resident MiB | bytes per model | `GET` of one, µs | warm inference, µs |\n|---|---|---|---|---|\n",
        );
        for row in &memory.registered {
            let _ = writeln!(
                self.text,
                "| {} | {} | {:.0} | {} | {} |",
                row.models,
                row.resident >> 20,
                row.per_model,
                plain(row.get),
                plain(row.infer)
            );
        }
        let _ = writeln!(
            self.text,
            "\nLoaded: {:.0} KiB per model over {} loaded ones.",
            memory.per_loaded / 1024.0,
            memory.loaded
        );
        let at = |models: usize| memory.registered.iter().find(|row| row.models == models);
        if let Some(row) = at(100_000) {
            self.bar(
                "100,000 registered models: at most 640 bytes of memory each",
                format!("{:.0} bytes", row.per_model),
                row.per_model <= 640.0,
            );
        }
        if let Some(row) = at(1_000_000) {
            self.bar(
                "1,000,000 registered models on one node: at most 700 MB",
                format!("{:.0} MB", row.resident as f64 / 1e6),
                row.resident <= 700_000_000,
            );
        }
    }

    pub(crate) fn miss(&mut self, miss: &Miss) {
        let _ = write!(
            self.text,
            "\n## A miss\n\nFrom sending a request for a model that is not loaded to its answer, over REST, with {} models registered. \
             The engine's own load of this model takes {}.\n\n\
             | room | p50 µs | p99 µs |\n|---|---|---|\n| free | {} | {} |\n| another model is evicted first | {} | {} |\n",
            miss.registered,
            micros(miss.engine),
            plain(miss.free.0),
            plain(miss.free.1),
            plain(miss.evicting.0),
            plain(miss.evicting.1)
        );
        for (room, p50) in [("with room", miss.free.0), ("with an eviction", miss.evicting.0)] {
            let added = p50.saturating_sub(miss.engine);
            self.bar(
                format!("A miss {room}: at most 1.5 ms beyond the engine's own load (p50)"),
                micros(added),
                added <= Duration::from_micros(1_500),
            );
        }
    }

    pub(crate) fn overload(&mut self, overload: &Overload) {
        let _ = write!(
            self.text,
            "\n## Overload\n\nOne model whose run takes {} and that answers {:.0} requests/s of callers who wait for their answers. Requests come at 80 % and at 200 % of \
             that, at random moments, over as many connections as it takes, whether earlier ones were answered or not. Milliseconds at the client, from the moment at \
             which a request should have been sent; what comes in the first three seconds is not counted.\n\n\
             | load | way | answered/s | p50 ms | p99 ms | refused/s | refusal p50 ms | refusal p99 ms | reasons |\n|---|---|---|---|---|---|---|---|---|\n",
            micros(overload.run),
            overload.capacity
        );
        for row in &overload.rows {
            let refused = row.refused.per_second > 0.0;
            let told = |latency| if refused { millis(latency) } else { String::new() };
            let reasons: Vec<&str> = row.reasons.keys().map(String::as_str).collect();
            let _ = writeln!(
                self.text,
                "| {} % ({:.0}/s) | {} | {:.0} | {} | {} | {:.0} | {} | {} | {} |",
                row.percent,
                row.offered,
                row.way,
                row.admitted.per_second,
                millis(row.admitted.p50),
                millis(row.admitted.p99),
                row.refused.per_second,
                told(row.refused.p50),
                told(row.refused.p99),
                reasons.join(", ")
            );
        }
        let find = |way: &str, percent| overload.rows.iter().find(|row| row.way == way && row.percent == percent);
        for way in ["Berth", "Berth, maxWait 5ms"] {
            let (Some(usual), Some(storm)) = (find(way, 80), find(way, 200)) else { continue };
            let ratio = storm.admitted.p99.as_secs_f64() / usual.admitted.p99.as_secs_f64();
            self.bar(
                format!("{way}: p99 of what is answered at 200 % of the capacity at most 1.5 times that at 80 %"),
                format!("{ratio:.2} times"),
                ratio <= 1.5,
            );
            self.bar(
                format!("{way}: refused in less than 5 ms (p99 at 200 %)"),
                format!("{} ms", millis(storm.refused.p99)),
                storm.refused.p99 < Duration::from_millis(5),
            );
        }
    }

    pub(crate) fn auth(&mut self, auth::Auth { rows, costs }: &auth::Auth) {
        self.text.push_str(
            "\n## Authentication and TLS\n\nThe same server without authentication, with tokens, and with tokens over TLS 1.3; iris over REST in JSON, on connections that are kept; and a bare axum server that answers with the request's inputs. The \
             median of nine rounds in turn; costs are compared within a round. The last column is the processor time of the server alone.\n\n| callers | server | requests/s | p50 µs | server's µs per request |\n|---|---|---|---|---|\n",
        );
        for row in rows {
            let (of, processor) = (plain(row.p50), format!("{:.1}", row.processor.as_secs_f64() * 1e6));
            let _ =
                writeln!(self.text, "| {} | {} | {:.0} | {of} | {processor} |", row.callers, row.mode, row.per_second);
        }
        let auth::Costs { token, tls, tls_both, tls_echo } = costs;
        let what = format!("A token costs the server at most 3 µs ({} callers)", auth::MANY_CALLERS);
        self.bar(what, format!("{token:.1} µs"), *token <= 3.0);
        // A server that has the machine for itself: the load generator pays for its own half of TLS.
        self.bar(
            format!("TLS costs the server at most 5 % of its throughput ({} callers)", auth::MANY_CALLERS),
            format!(
                "{tls:.1} % ({tls_both:.1} % with the load generator on the same cores; a bare echo: {tls_echo:.1} %)"
            ),
            *tls <= 5.0,
        );
    }

    pub(crate) fn executor(&mut self, rows: &[executor::Row]) {
        self.text.push_str(
            "\n## Executor\n\nAn echo server, straight, through a bare proxy, through `berth executor`, and through Envoy with the same duties: metrics by path, request ids, a bound on requests at once, retries, a breaker; with a log, each request is a line of JSON in a file too. The median of three rounds in turn.\n\n\
             | protocol | callers | way | requests/s | p50 µs | p99 µs |\n|---|---|---|---|---|---|\n",
        );
        for row in rows {
            let (p50, p99) = (plain(row.figures.p50), plain(row.figures.p99));
            let executor::Row { protocol, callers, way, figures } = row;
            let _ =
                writeln!(self.text, "| {protocol} | {callers} | {way} | {:.0} | {p50} | {p99} |", figures.per_second);
        }
        for row in rows.iter().filter(|row| row.way == executor::EXECUTOR) {
            let find = |way: &str| {
                let same = |other: &&executor::Row| other.protocol == row.protocol && other.callers == row.callers;
                rows.iter().filter(same).find(|other| other.way == way).map(|other| &other.figures)
            };
            let (Some(direct), Some(bare)) = (find(executor::DIRECT), find(executor::BARE)) else { continue };
            let executor::Row { protocol, callers, figures, .. } = row;
            if *callers == 1 {
                let added = figures.p50.saturating_sub(direct.p50);
                let what = format!("{protocol}, one caller: the executor adds at most 60 µs (p50)");
                self.bar(what, format!("{} µs", plain(added)), added <= std::time::Duration::from_micros(60));
            } else {
                let rate = figures.per_second / bare.per_second * 100.0;
                let what = format!("{protocol}, {callers} callers: at least 80 % of the bare proxy's rate");
                self.bar(what, format!("{rate:.0} %"), rate >= 80.0);
            }
        }
    }

    pub(crate) fn restart(&mut self, seen: &Restart) {
        let Restart { sent, answered, refused, lost, ended_well, took } = seen;
        let _ = write!(
            self.text,
            "\n## Restarts\n\nRequests through `berth executor` while the model server is killed and started again {} times; then the executor ends, and clients go on until nobody takes their \
             connections. Each answer is compared with its request. Refused: never accepted, because the executor ended.\n\n\
             | sent | answered | refused | lost | seconds |\n|---|---|---|---|---|\n| {sent} | {answered} | {refused} | {lost} | {:.0} |\n",
            restart::KILLS,
            took.as_secs_f64()
        );
        self.bar(
            "Of a million requests that the executor accepts, none is lost while the model server restarts and the executor ends",
            format!("{lost} of {sent} lost"),
            *lost == 0 && answered + refused == *sent && *answered >= restart::REQUESTS && *ended_well,
        );
    }

    pub(crate) fn plan(&mut self, plans: &[Plan]) {
        self.text.push_str("\n## Planning\n\n| workers | deployments | full plan from nothing, ms | one change, ms | one miss, ms |\n|---|---|---|---|---|\n");
        for plan in plans {
            let _ = writeln!(
                self.text,
                "| {} | {} | {:.0} | {:.3} | {:.3} |",
                plan.workers, plan.deployments, plan.full_ms, plan.change_ms, plan.miss_ms
            );
        }
        if let Some(largest) = plans.iter().max_by_key(|plan| plan.deployments) {
            let size = format!("{} workers × {} deployments", largest.workers, largest.deployments);
            self.bar(
                format!("Plan for one change at {size}: at most 5 ms"),
                format!("{:.3} ms", largest.change_ms),
                largest.change_ms <= 5.0,
            );
        }
        if let Some(plan) = plans.iter().find(|plan| (plan.workers, plan.deployments) == (1_000, 100_000)) {
            self.bar(
                "Full plan from nothing of 100,000 deployments on 1,000 workers: at most 0.8 s",
                format!("{:.0} ms", plan.full_ms),
                plan.full_ms <= 800.0,
            );
        }
    }

    /// The page with the bars at its end.
    pub(crate) fn finish(mut self) -> String {
        self.text.push_str(&standing(&self.bars));
        self.text
    }
}

/// The section that says where bars stand: each with what was measured, and if it was met.
pub(crate) fn standing(bars: &[(String, String, bool)]) -> String {
    let mut text = "\n## Where the bars stand\n\n| bar | measured | met |\n|---|---|---|\n".to_owned();
    for (what, stands, met) in bars {
        let _ = writeln!(text, "| {what} | {stands} | {} |", if *met { "yes" } else { "**no**" });
    }
    text
}

/// The machine, in words.
pub(crate) fn machine() -> Result<String> {
    let cpu = fs_err::read_to_string("/proc/cpuinfo")?;
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown")
        .trim_start_matches([' ', '\t', ':']);
    let memory = fs_err::read_to_string("/proc/meminfo")?;
    let memory: u64 = memory.lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0);
    let kernel = fs_err::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!("{cores} cores of {}, {} GiB, Linux {}", cpu.trim(), memory >> 20, kernel.trim()))
}

/// Milliseconds with two digits.
fn millis(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1e3)
}

/// Whole microseconds.
pub(crate) fn plain(duration: Duration) -> String {
    format!("{:.0}", duration.as_secs_f64() * 1e6)
}

/// Microseconds with their unit.
pub(crate) fn micros(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 100.0 { format!("{micros:.1} µs") } else { format!("{micros:.0} µs") }
}
