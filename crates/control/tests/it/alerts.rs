//! The alert rules name metrics that there are, and Prometheus can read them.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use berth_control::Metrics;
use prometheus_client::{encoding::text::encode, registry::Registry};

fn rules() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts/berth.rules.yaml")
}

fn trials() -> PathBuf {
    rules().with_file_name("berth.rules.test.yaml")
}

/// Names of metrics in a text that begin so.
fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(move |word| word.starts_with(prefix))
}

/// As it is registered: without what Prometheus appends to the parts of a histogram.
fn base(name: &str) -> &str {
    ["_bucket", "_sum", "_count", "_total"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name)
}

#[test]
fn rules_and_tables_name_metrics_that_there_are() {
    let mut registry = Registry::default();
    let _metrics = Metrics::register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).expect("text");
    let there: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(base).collect();
    let docs = rules().with_file_name("../observability.md");
    let mut seen = 0;
    for file in [rules(), docs] {
        let text = fs_err::read_to_string(&file).expect("it is there");
        for prefix in ["broker_", "system_", "berth_leader"] {
            for name in names(&text, prefix).filter(|name| !name.starts_with("broker_registry_")) {
                assert!(there.contains(base(name)), "{name} of {} is no metric: {there:?}", file.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 30, "names are found: {seen}");
}

#[test]
fn every_rule_is_tried() {
    let said = |file: PathBuf| fs_err::read_to_string(file).expect("it is there");
    let (rules, tests) = (said(rules()), said(trials()));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 20, "the rules are found: {alerts:?}");
    let untried: Vec<_> = alerts.iter().filter(|alert| !tests.contains(&format!("alertname=\"{alert}\""))).collect();
    assert!(untried.is_empty(), "docs/alerts/berth.rules.test.yaml raises none of {untried:?}");
}

/// `promtool` may be missing on a person's machine; where everything was installed it must not be.
#[test]
fn prometheus_reads_the_rules_and_each_is_raised_by_what_it_is_for() {
    for (action, file) in [("check", rules()), ("test", trials())] {
        let checked = Command::new("promtool").args([action, "rules"]).arg(file).output();
        match checked {
            Ok(output) => {
                let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                assert!(output.status.success(), "{}", said.concat());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                assert!(std::env::var_os("BERTH_REQUIRE_TOOLS").is_none(), "promtool is not installed");
                println!("promtool is not installed: only the names of the metrics were checked");
            }
            Err(error) => panic!("promtool: {error}"),
        }
    }
}
