//! Every file in `scripts/` is a story with what is seen in it.

use std::path::PathBuf;

use berth_sim::script;

#[test]
fn stories_go_as_recorded() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut files: Vec<PathBuf> =
        fs_err::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let update = std::env::var_os("UPDATE").is_some();
    let mut differing = Vec::new();
    for file in files {
        let recorded = fs_err::read_to_string(&file).expect("a script");
        let seen = script::run(&recorded).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        assert!(!seen.contains("VIOLATION"), "{}:\n{seen}", file.display());
        if seen != recorded && update {
            fs_err::write(&file, &seen).expect("written");
        } else if seen != recorded {
            differing.push(format!("{}:\n{seen}", file.display()));
        }
    }
    assert!(differing.is_empty(), "UPDATE=1 records what is seen now:\n{}", differing.join("\n"));
}
