//! `docs/benchmarks-cluster.md`.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;

use super::{
    change::{CHANGES, Change, REPLICAS, WORKERS},
    hop::{self, Row},
    recovery::NodeFailure,
    registered::{COUNT, Resident},
    stream,
};
use crate::page;

/// The page while it is written.
pub(crate) struct Report {
    text: String,
    bars: Vec<(String, String, bool)>,
}

impl Report {
    pub(crate) fn new() -> Result<Self> {
        let text = format!(
            "# Benchmarks of a cluster\n\nWritten by `cargo xtask bench cluster`, all of it in one run on one machine: {}. All nodes, \
             the store, the proxies and the load share its cores; compare rows of one table with each other.\n",
            page::machine()?
        );
        Ok(Self { text, bars: Vec::new() })
    }

    pub(crate) fn hop(&mut self, rows: &[Row]) {
        self.text.push_str(
            "\n## The hop\n\nA gateway forwards to the worker of another node over mutual TLS. Beside it, in the same place: Envoy and a bare \
             HTTP/2 proxy that looks at nothing, both without TLS to the worker; and no proxy at all.\n\n\
             | model | protocol | callers | way | requests/s | p50 µs | p99 µs | added at p50 µs |\n|---|---|---|---|---|---|---|---|\n",
        );
        for row in rows {
            let direct = find(rows, row, hop::DIRECT).map_or(Duration::ZERO, |direct| direct.figures.p50);
            let added = row.figures.p50.as_secs_f64() - direct.as_secs_f64();
            let _ = writeln!(
                self.text,
                "| {} | {} | {} | {} | {:.0} | {} | {} | {:.0} |",
                row.model,
                row.protocol,
                row.callers,
                row.way,
                row.figures.per_second,
                page::plain(row.figures.p50),
                page::plain(row.figures.p99),
                added * 1e6
            );
        }
        for protocol in ["REST-JSON", "gRPC"] {
            self.hop_bars(rows, protocol);
        }
    }

    fn hop_bars(&mut self, rows: &[Row], protocol: &str) {
        let at = |callers, way| {
            rows.iter()
                .find(|row| row.model == "iris" && row.protocol == protocol && row.callers == callers && row.way == way)
        };
        if let (Some(direct), Some(berth)) = (at(1, hop::DIRECT), at(1, hop::BERTH)) {
            let added = berth.figures.p50.saturating_sub(direct.figures.p50);
            if let Some(bare) = at(1, hop::BARE) {
                let theirs = bare.figures.p50.saturating_sub(direct.figures.p50);
                self.bar(
                    format!("hop over mutual TLS at p50, {protocol}, 1 caller: ≤ what the bare proxy adds"),
                    format!("{}, bare proxy {}", page::micros(added), page::micros(theirs)),
                    added <= theirs,
                );
            }
            if let Some(envoy) = at(1, hop::ENVOY) {
                let theirs = envoy.figures.p50.saturating_sub(direct.figures.p50);
                self.bar(format!("hop at p50 ahead of Envoy, {protocol}"), page::micros(theirs), added < theirs);
            }
        }
        if let (Some(bare), Some(berth)) = (at(64, hop::BARE), at(64, hop::BERTH)) {
            let share = berth.figures.per_second / bare.figures.per_second;
            let stands = format!("{:.0} %", share * 100.0);
            self.bar(format!("rate of the bare proxy, {protocol}, 64 callers: ≥ 80 %"), stands, share >= 0.8);
            if let Some(envoy) = at(64, hop::ENVOY) {
                let ahead = berth.figures.per_second / envoy.figures.per_second;
                self.bar(format!("rate ahead of Envoy, {protocol}, 64 callers"), format!("{ahead:.1}×"), ahead > 1.0);
            }
        }
    }

    pub(crate) fn stream(&mut self, rows: &[stream::Row]) {
        let _ = write!(
            self.text,
            "\n## Bytes of a stream\n\nA message of {} bytes in a bidirectional gRPC call to a model of an external runtime, from sending it \
             until the runtime has sent it back: the first one of a stream, with opening it, and those after it. One caller.\n\n\
             | through | first message p50 µs | p99 µs | later messages p50 µs | p99 µs |\n|---|---|---|---|---|\n",
            stream::MESSAGE
        );
        for row in rows {
            let [first50, first99, later50, later99] =
                [row.first.p50, row.first.p99, row.later.p50, row.later.p99].map(page::plain);
            let _ = writeln!(self.text, "| {} | {first50} | {first99} | {later50} | {later99} |", row.way);
        }
        if let Some(hop) = rows.iter().find(|row| row.way == stream::HOP) {
            self.bar(
                "first byte of a stream over a hop, there and back: ≤ 2 ms at p99",
                page::micros(hop.first.p99),
                hop.first.p99 <= Duration::from_millis(2),
            );
        }
    }

    pub(crate) fn recovery(&mut self, failures: &[NodeFailure]) {
        self.text.push_str(
            "\n## A node dies\n\nThree nodes, two copies of a model, 8 callers through a node that lives; one node is killed (kill -9). \
             Rates and latencies before it, in the first second after it, and later.\n\n\
             | who dies | requests | failed | requests/s before / first second / later | p99 µs before / first second / later | slowest |\n\
             |---|---|---|---|---|---|\n",
        );
        for failure in failures {
            let rate = failure.rate.map(|rate| format!("{rate:.0}")).join(" / ");
            let p99 = failure.p99.map(page::plain).join(" / ");
            let _ = writeln!(
                self.text,
                "| {} | {} | {} | {rate} | {p99} | {:.0} ms |",
                failure.who,
                failure.requests,
                failure.failed,
                failure.slowest.as_secs_f64() * 1e3
            );
            self.bar(
                format!("requests lost when {} dies with two copies: 0", failure.who),
                format!("{} of {}", failure.failed, failure.requests),
                failure.failed == 0,
            );
        }
        self.text.push('\n');
        for failure in failures {
            for (what, took) in &failure.recovery_times {
                let _ = writeln!(self.text, "* {} dies: {what} after {:.2} s", failure.who, took.as_secs_f64());
                if *what == "another one decides" {
                    let met = *took < Duration::from_secs(5);
                    self.bar("fail-over of the controller: < 5 s", format!("{:.2} s", took.as_secs_f64()), met);
                }
            }
        }
    }

    pub(crate) fn registered(&mut self, rows: &[Resident]) {
        let _ = write!(
            self.text,
            "\n## Memory with {COUNT} deployments\n\n| process | empty MiB | with all MiB | bytes per deployment |\n|---|---|---|---|\n"
        );
        for row in rows {
            let each = row.full.saturating_sub(row.empty) as f64 / COUNT as f64;
            let _ = writeln!(self.text, "| {} | {} | {} | {each:.0} |", row.what, row.empty >> 20, row.full >> 20);
        }
    }

    pub(crate) fn change(&mut self, change: &Change) {
        let _ = write!(
            self.text,
            "\n## One change in a large fleet\n\nThe real controller, etcd and wire format; {WORKERS} simulated workers hold {REPLICAS} replicas.\n\n\
             | what | measured |\n|---|---|\n\
             | all declared, placed and said to be ready | {:.1} s |\n\
             | one more deployment, declared to ready, median of {CHANGES} | {:.1} ms |\n\
             | the slowest of them | {:.1} ms |\n\
             | bytes for it to all workers together | {} |\n\
             | bytes for it to one gateway | {} |\n",
            change.filled.as_secs_f64(),
            change.p50.as_secs_f64() * 1e3,
            change.slowest.as_secs_f64() * 1e3,
            change.to_workers,
            change.to_gateway
        );
    }

    fn bar(&mut self, what: impl Into<String>, stands: impl Into<String>, met: bool) {
        self.bars.push((what.into(), stands.into(), met));
    }

    pub(crate) fn finish(mut self) -> String {
        self.text.push_str("\n## Where each bar stands\n\n| bar | stands | met |\n|---|---|---|\n");
        for (what, stands, met) in &self.bars {
            let _ = writeln!(self.text, "| {what} | {stands} | {} |", if *met { "yes" } else { "no" });
        }
        self.text
    }
}

/// The same case by another way.
fn find<'a>(rows: &'a [Row], like: &Row, way: &str) -> Option<&'a Row> {
    rows.iter()
        .find(|row| (row.model, row.protocol, row.callers, row.way) == (like.model, like.protocol, like.callers, way))
}
