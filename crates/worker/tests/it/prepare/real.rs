//! With the real uv and a package index. Without uv (`cargo xtask setup` fetches it), or where no index answers, these
//! tests say so and pass.

use super::*;

pub(crate) fn uv() -> Option<PathBuf> {
    let uv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/uv/bin/uv");
    let found = uv.is_file().then_some(uv);
    if found.is_none() {
        eprintln!("skipped: there is no uv; `cargo xtask setup` fetches it");
    }
    found
}

/// The version of `python3`.
pub(crate) fn version() -> String {
    let ask = "import sys; print('%d.%d' % sys.version_info[:2])";
    run(Command::new("/usr/bin/env").args(["python3", "-c", ask])).trim().to_owned()
}

fn files_named(name: &str, below: &Path) -> Vec<PathBuf> {
    let (mut found, mut rooms) = (Vec::new(), vec![below.to_owned()]);
    while let Some(room) = rooms.pop() {
        for entry in fs_err::read_dir(room).expect("a folder").flatten() {
            match entry.file_type().expect("a type").is_dir() {
                true => rooms.push(entry.path()),
                false if entry.file_name() == name => found.push(entry.path()),
                false => {}
            }
        }
    }
    assert!(!found.is_empty(), "{name} was fetched");
    found
}

#[tokio::test]
async fn a_real_environment_runs_and_a_real_conflict_is_told() {
    let Some(uv) = uv() else { return };
    let world = World::new();
    let environment = std::env::vars_os().collect();
    let preparer = world.preparer_with(Settings { uv: Some(uv), environment, ..world.settings() });
    let card = |dependencies: &[&str]| {
        let mut card = PinnedCard::clone(&world.card(dependencies));
        card.card.runtime.python_version = version();
        Arc::new(card)
    };
    let prepared = match prepare(&preparer, &card(&["six==1.16.0"])).await {
        Err(fault) if fault.category == FailureCategory::Network => {
            eprintln!("skipped: no package index answers ({fault})");
            return;
        }
        other => other.expect("an environment"),
    };
    let said = run(Command::new(&prepared.python).args(["-I", "-c", "import six; print(six.__version__)"]));
    assert_eq!(said.trim(), "1.16.0");
    for file in files_named("six.py", &world.path("prepared/uv/fetched")) {
        // As a crash or a model that writes into its packages leaves it: environments share the file.
        fs_err::write(file, "").expect("damaged");
    }
    let other = prepare(&preparer, &card(&["six==1.16.0", "idna==3.7"])).await.expect("fetched again");
    let said = run(Command::new(&other.python).args(["-I", "-c", "import six; print(six.__version__)"]));
    assert_eq!(said.trim(), "1.16.0");
    let fault = prepare(&preparer, &card(&["six==1.16.0", "python-dateutil==2.9.0", "six==1.15.0"])).await;
    let fault = fault.expect_err("two versions of one package");
    assert_eq!(fault.category, FailureCategory::Dependencies, "{fault}");
    assert!(fault.message.contains("six==1.1") && fault.trace.is_some(), "{fault}");
    let fault = prepare(&preparer, &card(&["six==99.0.0"])).await.expect_err("no such version");
    assert_eq!(fault.category, FailureCategory::Dependencies, "{fault}");
}

const PROJECT: &str = r#"[project]
name = "x"
version = "1"
requires-python = ">=3.9"
dependencies = ["six==1.16.0"]
"#;

const PROJECT_LOCK: &str = r#"version = 1
revision = 3
requires-python = ">=3.9"

[[package]]
name = "six"
version = "1.16.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://files.pythonhosted.org/packages/d9/5a/e7c31adbe875f2abbb91bd84cf2dc52d792b5a01506781dbcf25c91daf11/six-1.16.0-py2.py3-none-any.whl", hash = "sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254", size = 11053 },
]

[[package]]
name = "x"
version = "1"
source = { virtual = "." }
dependencies = [
    { name = "six" },
]
"#;

#[tokio::test]
async fn the_lock_of_a_project_decides_what_is_installed() {
    let Some(uv) = uv() else { return };
    let mut world = World::new();
    fs_err::write(world.path("code/pyproject.toml"), PROJECT).expect("written");
    fs_err::write(world.path("code/uv.lock"), PROJECT_LOCK).expect("written");
    world.commit = world.commit("with a lock", "v1.0.0");
    let environment = std::env::vars_os().collect();
    let preparer = world.preparer_with(Settings { uv: Some(uv), environment, ..world.settings() });
    let card = |dependencies: &[&str]| {
        let mut card = PinnedCard::clone(&world.card(dependencies));
        card.card.runtime.python_version = version();
        card.card.runtime.dependencies_lock = Some("uv.lock".to_owned());
        Arc::new(card)
    };
    let fault = prepare(&preparer, &card(&["six==1.17.0"])).await.expect_err("the lock is older");
    assert!(fault.message.contains("uv.lock is out of date: it has six 1.16.0"), "{fault}");
    match prepare(&preparer, &card(&["six==1.16.0"])).await {
        Err(fault) if fault.category == FailureCategory::Network => {
            eprintln!("skipped: no package index answers ({fault})");
        }
        other => {
            let wanted = other.expect("an environment").python.ancestors().nth(3).expect("its folder").to_owned();
            let wanted = fs_err::read_to_string(wanted.join("requirements.txt")).expect("written");
            assert!(wanted.starts_with("six==1.16.0 --hash=sha256:8abb2f1d"), "{wanted}");
        }
    }
}
