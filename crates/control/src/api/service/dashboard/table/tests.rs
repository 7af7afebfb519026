//! Selections from a few rows.

use berth_plan::fixture;

use super::*;

fn row(name: &str, phase: Phase, memory: u64) -> Row {
    Row { deployment: Arc::new(fixture::deployment(name)), phase, ready: 1, memory, last_used: None, stuck: None }
}

fn rows() -> Vec<Row> {
    vec![
        row("Churn", Phase::Available, 30),
        row("iris", Phase::Available, 10),
        row("iris-v2", Phase::Failed, 0),
        row("shop/iris", Phase::ScaledDown, 20),
    ]
}

fn names(asked: &Selection) -> Vec<String> {
    let rows = rows();
    let busy = ModelTop { requests: 3, failures_per_second: 1.0, ..ModelTop::default() };
    let selected = select(&rows, &BTreeMap::from([("iris-v2".to_owned(), busy)]), asked);
    assert!(selected.page.len() <= selected.matching);
    selected.page.iter().map(|number| rows[*number].deployment.name.to_string()).collect()
}

fn all() -> Selection {
    Selection { limit: 10, ..Selection::default() }
}

#[test]
fn search_and_filters() {
    let search = |search: &str| names(&Selection { search: search.into(), ..all() });
    assert_eq!(search("IRIS"), ["iris", "iris-v2", "shop/iris"]);
    assert_eq!(
        (search("churn"), search("op/i"), search("ä")),
        (vec!["Churn".into()], vec!["shop/iris".into()], vec![])
    );
    let shop = Namespace::new("shop").ok();
    assert_eq!(names(&Selection { namespace: shop, ..all() }), ["shop/iris"]);
    assert_eq!(names(&Selection { phase: Some(Phase::Failed), ..all() }), ["iris-v2"]);
}

#[test]
fn orders_and_pages() {
    let by = |sort, descending| names(&Selection { sort, descending, ..all() });
    assert_eq!(by(Sort::Memory, true), ["Churn", "shop/iris", "iris", "iris-v2"]);
    assert_eq!(by(Sort::Memory, false)[0], "iris-v2");
    assert_eq!(by(Sort::Failures, true), ["iris-v2", "Churn", "iris", "shop/iris"], "the rest is by name");
    assert_eq!(by(Sort::Requests, true)[0], "iris-v2");
    assert_eq!(by(Sort::Name, true)[0], "shop/iris");
    assert_eq!(names(&Selection { offset: 1, limit: 2, ..all() }), ["iris", "iris-v2"]);
    assert!(names(&Selection { offset: 9, ..all() }).is_empty());
}

#[test]
fn phases_are_counted_beside_the_one_that_is_asked_for() {
    let asked = Selection { phase: Some(Phase::Failed), search: "iris".into(), ..all() };
    let selected = select(&rows(), &BTreeMap::new(), &asked);
    let phases = [(Phase::Available, 1), (Phase::Failed, 1), (Phase::ScaledDown, 1)];
    assert_eq!((selected.matching, selected.phases), (1, phases.into()));
}

#[test]
fn pages_together_are_the_whole_list() {
    let phase = |n: usize| Phase::ALL[n % Phase::ALL.len()];
    let rows: Vec<Row> = (0..500).map(|n| row(&format!("m{n:03}"), phase(n), n as u64 * 7_919 % 13)).collect();
    for (_, sort) in Sort::NAMES {
        for descending in [false, true] {
            let page = |offset, limit| {
                let asked = Selection { sort, descending, offset, limit, ..Selection::default() };
                select(&rows, &BTreeMap::new(), &asked).page
            };
            let whole = page(0, 500);
            let parts: Vec<usize> = (0..500).step_by(70).flat_map(|offset| page(offset, 70)).collect();
            assert_eq!((whole.len(), &parts), (500, &whole), "{sort:?}, descending: {descending}");
        }
    }
}

#[test]
fn what_an_owner_has_that_does_not_get_on_is_counted_and_ten_are_named() {
    let owner = Origin::directory("/models");
    let of = |name: String, owner: &Origin, reason: &str| {
        let status = if reason == "RollingOut" { Truth::True } else { Truth::False };
        let condition = |kind| Condition { kind, status, reason: reason.to_owned(), message: String::new() };
        let deployment = Arc::new(Deployment { origin: owner.clone(), ..fixture::deployment(&name) });
        let conditions = [condition("Available"), condition("Progressing")];
        Row { deployment, stuck: stuck(&conditions), ..row(&name, Phase::Degraded, 0) }
    };
    let rows = (0..12).map(|n| of(format!("m{n:02}"), &owner, STUCK[n % 3])).chain([
        of("canary".to_owned(), &owner, "Canary"),
        of("moves".to_owned(), &owner, "RollingOut"),
        of("other".to_owned(), &Origin::API, "RolloutStuck"),
    ]);
    let table = Table { rows: rows.collect(), ..Table::default() };
    let stuck = table.stuck_of(&owner);
    assert_eq!((stuck.count, stuck.first.len()), (12, 10));
    assert_eq!(stuck.first[..2], ["m00: RolloutStuck", "m01: RolloutOverdue"]);
    assert_eq!(table.stuck_of(&Origin::directory("/else")), StuckDeployments::default());
}
