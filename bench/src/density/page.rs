//! `docs/benchmarks-density.md`.

use std::{fmt::Write as _, time::Duration};

use anyhow::Result;

use super::{FILLING, HELD, LOAD, Row, SIZE, WARMING, cost::Cost};
use crate::{
    load::Figures,
    page::{machine, plain, standing},
};

/// The most that Berth may add to a call of 1 KiB at p50.
const ADDED: Duration = Duration::from_micros(60);
/// The most that it may add to a call of 4 MiB at p50, in percent.
const ADDED_SHARE: f64 = 5.0;
/// The most bytes of Berth's memory for each model.
const PER_MODEL: f64 = 1_024.0;

/// Figures that others have published, with their set-ups.
const OTHERS: &str = "\
## Figures of others\n\n\
Published by their authors, on other machines and with other models: they say what was tried, not what is faster.\n\n\
| who | what | set-up |\n|---|---|---|\n\
| ModelMesh, `modelmesh-performance` README | 1,000 calls: p50 3.58 ms, p95 10.70 ms, p99 29.71 ms | 10 small TensorFlow models in Triton, 100 calls/s for 10 s over gRPC; machine not told |\n\
| ModelMesh, k6 sample output | mean 103 ms, p95 124.6 ms | one scikit-learn model in MLServer, one caller |\n\
| KServe `BENCHMARK.md`, many models per server | 352 services, or about 10,000 models; p50 3.3 to 3.8 ms; at 500 calls/s mean 260 ms, p99 2,241 ms | small TensorFlow models in Triton, 6 nodes |\n\
| ModelMesh users | targets of 5,000 models of 170 MB and of 100,000 of 500 MB; refusals under churn, memory of GPUs exceeded | issues `modelmesh-serving` 341 and `modelmesh` 82 |\n";

pub(super) fn of(rows: &[Row], costs: &[Cost], rate: f64) -> Result<String> {
    let mut text = format!(
        "# Benchmarks: many models\n\n`cargo xtask bench density` wrote this page, on one machine: {}. The load generator, Berth and the model servers share its cores.\n\n\
         ## Hits\n\n\
         Two model servers (`berth testing runtime` over `mmesh.ModelRuntime`) hold one model of {HELD}, each for every other model. A model has {SIZE} bytes, and takes {} ms to \
         load and {} ms to unload there. Calls of 1 KiB come at {rate:.0}/s, whether earlier ones were answered or not, with popularity after Zipf; the first {} s are not counted. \
         Latencies are in milliseconds at the client, from the moment at which a call should have been sent; the longest, as many as there were misses, are taken for those of misses. \
         Belady's rule knows the future: nobody has more hits. Memory per model is the growth of Berth's process over the models after the first {WARMING}; the last column is the \
         whole process at the end.\n\n\
         | models | answered | failed | hits | of Belady's | of the longest unused leaving | hit p50 / p99 | miss p50 / p99 | evictions/s | Berth's memory per model | in all |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        machine()?,
        LOAD.0,
        LOAD.1,
        FILLING.as_secs(),
    );
    for row in rows {
        let [hit, miss] = row.seen.quantiles();
        let millis = |(p50, p99): (Duration, Duration)| {
            format!("{:.2} / {:.2}", p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3)
        };
        let [hits, belady, unused] = row.hits;
        let counted = (row.seen.answered() + row.seen.failed) as f64 / rate;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.1} % | {:.1} % | {:.1} % | {} | {} | {:.0} | {:.0} B | {} MiB |",
            row.models,
            row.seen.answered(),
            row.seen.failed,
            hits * 100.0,
            hits / belady * 100.0,
            hits / unused * 100.0,
            millis(hit),
            millis(miss),
            row.evictions as f64 / counted,
            row.per_model,
            row.resident >> 20,
        );
    }
    text.push_str(
        "\n## The cost of a call\n\nA gRPC call of any method, its message sent back by the model server: directly, and through Berth on the same machine with the model named by \
         `mm-model-id`. One caller; a stream's messages are timed after its first. The median of three rounds in turn, in microseconds.\n\n\
         The bare proxy has one thread and Berth's HTTP library. It looks at nothing, and sends each frame by itself. What it adds is the cost of one more process on the way: two more \
         processes are woken, and all bytes are read and written once more. Where that is beyond a bar, the bar is out of reach of such a proxy on this machine. Berth sends the frames of a \
         large message together.\n\n\
         | call | message | direct p50 | bare proxy p50 | through Berth p50 | added by the bare proxy | added by Berth | through Berth p99 |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for Cost { kind, size, direct, bare, through } in costs {
        let added = |figures: &Figures| {
            let (added, share) = overhead(direct.p50, figures.p50);
            format!("{} ({share:.0} %)", plain(added))
        };
        let (d, b, t, p99) = (plain(direct.p50), plain(bare.p50), plain(through.p50), plain(through.p99));
        let _ = writeln!(text, "| {kind} | {size} | {d} | {b} | {t} | {} | {} | {p99} |", added(bare), added(through));
    }
    text.push_str(&standing(&bars(rows, costs)));
    text.push('\n');
    text.push_str(OTHERS);
    Ok(text)
}

/// The time that Berth adds, and its share of the direct call in percent.
fn overhead(direct: Duration, through: Duration) -> (Duration, f64) {
    let added = through.saturating_sub(direct);
    (added, added.as_secs_f64() / direct.as_secs_f64() * 100.0)
}

/// The bars of many models, with what was measured.
fn bars(rows: &[Row], costs: &[Cost]) -> Vec<(String, String, bool)> {
    let of_calls = costs.iter().filter_map(|Cost { kind, size, direct, bare, through }| {
        let (time, share) = overhead(direct.p50, through.p50);
        let (least, least_share) = overhead(direct.p50, bare.p50);
        let what = |most: &str| format!("{kind}, {size}: Berth adds at most {most} (p50)");
        match *size {
            "1 KiB" => {
                let stands = format!("{} µs, bare proxy {} µs", plain(time), plain(least));
                Some((what(&format!("{} µs", plain(ADDED))), stands, time <= ADDED))
            }
            "4 MiB" => {
                let stands = format!("{share:.0} %, bare proxy {least_share:.0} %");
                Some((what(&format!("{ADDED_SHARE:.0} %")), stands, share <= ADDED_SHARE))
            }
            _ => None,
        }
    });
    let of_memory = rows.iter().map(|row| {
        let what = format!("{} models: at most {PER_MODEL:.0} B of Berth's memory for each", row.models);
        (what, format!("{:.0} B", row.per_model), row.per_model <= PER_MODEL)
    });
    of_calls.chain(of_memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_or_not_as_measured() {
        let figures = |micros| Figures { per_second: 1.0, p50: Duration::from_micros(micros), p99: Duration::ZERO };
        let cost = |size, [direct, bare, through]: [u64; 3]| {
            let (direct, bare, through) = (figures(direct), figures(bare), figures(through));
            Cost { kind: "unary", size, direct, bare, through }
        };
        let costs =
            [cost("1 KiB", [100, 150, 161]), cost("100 KiB", [100, 150, 900]), cost("4 MiB", [1_000, 1_800, 1_050])];
        let stand = bars(&[], &costs);
        let [first, second] = &stand[..] else { panic!("two of them have bars: {stand:?}") };
        assert_eq!((first.1.as_str(), first.2), ("61 µs, bare proxy 50 µs", false));
        assert_eq!((second.1.as_str(), second.2), ("5 %, bare proxy 80 %", true));
    }
}
