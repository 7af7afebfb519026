//! The modules of this crate form layers: each imports only those below it.

use std::path::{Path, PathBuf};

/// From the bottom to the top.
const LAYERS: [&str; 48] = [
    "swept_map",
    "not_run",
    "rendezvous",
    "wire_field",
    "watch",
    "disclosure",
    "trail",
    "data_plane",
    "sticky",
    "latency",
    "metrics",
    "calls",
    "exchange",
    "local",
    "offload",
    "payload",
    "controls",
    "config",
    "oip",
    "fair",
    "meter",
    "account",
    "body",
    "shared_memory",
    "accounts",
    "overload",
    "endpoint",
    "resolved",
    "wait_queue",
    "outcomes",
    "deployment",
    "quota",
    "routes",
    "route_cache",
    "demand",
    "parking",
    "admission",
    "stack",
    "follow",
    "hints",
    "repository",
    "forward",
    "statistics",
    "ingress",
    "listener",
    "exporter",
    "top",
    "gateway",
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        match entry.path() {
            path if path.is_dir() => files(&path, found),
            path if path.extension().is_some_and(|ending| ending == "rs") => found.push(path),
            _ => {}
        }
    }
}

/// The modules of this crate that a file names after `crate::`, alone or in braces.
fn imported(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.split("#[cfg(test)]mod tests").next().unwrap_or_default();
    let word =
        |text: &str| text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
    let mut names = Vec::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            names.extend(word(after));
            continue;
        };
        let (mut depth, mut begins) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    names.extend(word(&group[begins..at]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    names.extend(word(&group[begins..at]));
                    begins = at + 1;
                }
                _ => {}
            }
        }
    }
    names
}

#[test]
fn no_module_imports_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&root, &mut all);
    let layer = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let (mut arrows, mut wrong) = (0, Vec::new());
    for path in all {
        let inside = path.strip_prefix(&root).expect("inside").with_extension("");
        let module = inside.iter().next().and_then(|first| first.to_str()).expect("a name").to_owned();
        if module == "lib" {
            continue;
        }
        let own = layer(&module).unwrap_or_else(|| panic!("{module} has no layer"));
        for name in imported(&fs_err::read_to_string(&path).expect("text")) {
            let Some(other) = layer(&name) else { continue };
            arrows += usize::from(other != own);
            if other > own {
                wrong.push(format!("{} imports {name}", inside.display()));
            }
        }
    }
    assert!(arrows > 50, "the imports were not understood: {arrows}");
    assert_eq!(wrong, Vec::<String>::new());
}
