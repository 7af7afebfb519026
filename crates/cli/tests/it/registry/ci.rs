//! Checks of a registry's commits in CI systems and clones.

use std::{fs, path::Path};

use super::{MANIFEST, World, berth, git, right, run, text};

#[test]
fn commits_are_named_as_git_names_them() {
    let world = World::new();
    world.commit("first");
    git(world.root.path(), &["clone", "-q", "registry", "clone"]);
    let clone = world.root.path().join("clone");
    let run = |folder: &Path, arguments: &[&str]| {
        let all = [&["registry", "validate", ".", "--local-repositories"], arguments].concat();
        berth(folder, &all)
    };
    for name in ["origin/main", "HEAD", "HEAD~0", "main"] {
        right(&run(&clone, &["--commit", "HEAD", "--previous", name]));
    }
    let out = run(&clone, &["--commit", "--upload-pack=x"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    // A folder inside of a repository has no commits of its own.
    let out = run(&clone.join("models"), &["--commit", "HEAD"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("not the root of a repository"), "{}", text(&out.stderr));
}

#[test]
fn a_log_of_ci_has_the_report_beside_the_file() {
    let world = World::new();
    world.edit(MANIFEST, "v0.1.0", "main");
    for form in ["sarif", "junit"] {
        let told = text(&world.validate(&["-o", form]).stderr);
        assert!(told.contains("is not pinned") && told.contains("rejected: unpinned ref: 1 error"), "{form}: {told}");
    }
}

/// The commands below the line `key` of a template: a list, or a text of lines.
fn script(world: &World, file: &str, key: &str) -> String {
    let text = fs::read_to_string(world.registry().join(file)).expect("a template");
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip_while(|line| line.trim() != key);
    let around = indent(lines.next().expect("the key"));
    let within = lines.take_while(|line| indent(line) > around);
    within.map(|line| line.trim_start().trim_start_matches("- ").to_owned() + "\n").collect()
}

/// The commands in the CI templates work.
#[test]
fn templates_of_ci_run() {
    let world = World::new();
    world.commit("first");
    let first = git(&world.registry(), &["rev-parse", "HEAD"]);
    git(world.root.path(), &["clone", "-q", "registry", "clone"]);
    let clone = world.root.path().join("clone");
    let head = first.as_str();
    let berth = format!("berth() {{ '{}' \"$@\" --local-repositories; }}\n", env!("CARGO_BIN_EXE_berth"));
    let zeros = "0".repeat(40);
    for (file, key, env, report) in [
        (".github/workflows/validate.yaml", "run: |", &[("COMMIT", head), ("PREVIOUS", head)][..], "results.sarif"),
        (".github/workflows/validate.yaml", "run: |", &[("COMMIT", head), ("PREVIOUS", &zeros)], "results.sarif"),
        (".gitlab-ci.yml", "script:", &[("CI_COMMIT_SHA", head), ("CI_COMMIT_BEFORE_SHA", &zeros)], "report.xml"),
        (
            ".gitlab-ci.yml",
            "script:",
            &[("CI_COMMIT_SHA", head), ("CI_MERGE_REQUEST_DIFF_BASE_SHA", head)],
            "report.xml",
        ),
        ("bitbucket-pipelines.yml", "script:", &[], "test-results/registry.xml"),
    ] {
        let commands = script(&world, file, key);
        assert!(commands.contains("berth registry validate . --commit"), "{file}: {commands}");
        let out = run("bash", &clone, &["-e", "-c", &format!("{berth}{commands}")], env);
        right(&out);
        let written = fs::read_to_string(clone.join(report)).expect("a report");
        assert!(written.contains("berth registry"), "{file}: {written}");
    }
    // All that was there is removed: only what came before says so.
    git(&clone, &["rm", "-q", MANIFEST]);
    git(&clone, &["commit", "-q", "-m", "remove"]);
    fs_err::write(clone.join("models/staging/.gitkeep"), "").expect("written");
    git(&clone, &["add", "."]);
    git(&clone, &["commit", "-q", "--allow-empty", "-m", "keep"]);
    let commands = script(&world, "bitbucket-pipelines.yml", "script:");
    let out = run("bash", &clone, &["-e", "-c", &format!("{berth}{commands}")], &[]);
    assert!(!out.status.success() && text(&out.stderr).contains("removes all 1 deployments"), "{}", text(&out.stderr));
}
