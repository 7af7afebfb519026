//! Reports in all output formats.

use berth_registry::render::{self, Colours};

use crate::fixture::World;

#[test]
fn every_reader_is_told_the_same() {
    let world = World::new();
    world.write(
        "models/production/iris-prod.yaml",
        &world.manifest("iris-prod", "main").replace("owner: ops", "ownr: ops"),
    );
    let report = world.validate();
    let text = render::text(&report, Colours::Off);
    for part in [
        "error: \"main\" is not pinned",
        "--> models/production/iris-prod.yaml:5:8",
        "5 |   ref: main\n  |        ^",
        "help: write a tag v1.2.3",
        "by: Ada <ada@example.com> in ",
        "warning: ownr is not a field of the schema",
        "rejected ",
        "unpinned ref: 1 error, 1 warning; 1 manifest, 1 worker, 0 model cards; for operations",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains('\u{1b}') && render::text(&report, Colours::On).contains("\u{1b}[1;31merror:"));

    let json = render::json(&report);
    assert_eq!(json["outcome"], "unpinned_ref");
    assert_eq!(json["problems"][1]["step"], "references");
    assert_eq!(json["problems"][1]["line"], 5);

    let sarif = render::sarif(&report);
    let result = &sarif["runs"][0]["results"][1];
    assert_eq!((result["ruleId"].as_str(), result["level"].as_str()), (Some("unpinned"), Some("error")));
    let region = &result["locations"][0]["physicalLocation"]["region"];
    assert_eq!((region["startLine"].clone(), region["startColumn"].clone()), (5.into(), 8.into()));

    let junit = render::junit(&report);
    assert!(junit.contains("tests=\"6\" failures=\"1\" errors=\"0\" skipped=\"0\""), "{junit}");
    assert!(junit.contains("type=\"unpinned_ref\"") && junit.contains("&quot;main&quot;"), "{junit}");
}

#[test]
fn a_good_report_is_one_line() {
    let world = World::new();
    let text = render::text(&world.validate(), Colours::Off);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(": 1 manifest, 1 worker, 1 model card"), "{text}");
}
