//! House rules that no lint knows: which crate may use which, how long a file may be, which rooms must not exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use fs_err as fs;

/// Lines that are not tests, at most. What is longer lacks a noun.
const MAX_CODE_LINES: usize = 500;

/// Files above this many lines begin with `//!`.
const UNEXPLAINED: usize = 40;

/// Names that say nothing about what is in the room.
const BANNED: [&str; 8] = ["utils", "util", "helpers", "helper", "common", "manager", "types", "misc"];

/// Words that no doc comment opens with: a noun or a verb says what the item is or does.
const OPENERS: [&str; 9] = ["What", "Whether", "Which", "Who", "Why", "How", "It", "They", "That"];

/// Pieces of a formula that speaks of other values, and says nothing of the one that is there.
const FORMULAS: [&str; 6] = ["halved,", "halving", "doubling it", "doubling this", "; doubled,", "half as many"];

/// Type names that were images, or that many types had at once. The field's terms took their places.
const IMAGES: [&str; 80] = [
    "Accused",
    "Appetite",
    "Aside",
    "Asking",
    "Attention",
    "Barred",
    "Baton",
    "Board",
    "Books",
    "Candidacy",
    "Chores",
    "Desk",
    "Dice",
    "Door",
    "Drifting",
    "Drive",
    "Ear",
    "Entrance",
    "Errand",
    "Eyes",
    "Front",
    "Grounds",
    "Halt",
    "Hands",
    "Haste",
    "Hearing",
    "Held",
    "Herald",
    "Here",
    "Home",
    "InForce",
    "Journey",
    "Keeper",
    "Kept",
    "Kit",
    "Lack",
    "Letter",
    "Lookout",
    "Lot",
    "Matter",
    "Mending",
    "News",
    "Others",
    "Parcel",
    "Passed",
    "Presence",
    "Presumed",
    "Ran",
    "Road",
    "Roll",
    "Safe",
    "Safekeeping",
    "Scribe",
    "Seams",
    "Search",
    "Seat",
    "SeatView",
    "Seats",
    "Seen",
    "Shelf",
    "Shelter",
    "Sides",
    "Sight",
    "Silence",
    "Spent",
    "Stock",
    "StoredHalt",
    "Surroundings",
    "Taken",
    "Taste",
    "Teller",
    "There",
    "Together",
    "Told",
    "Touch",
    "Touched",
    "Unheard",
    "Vacancy",
    "What",
    "Wish",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file of the crates, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    files(&["crates", "xtask"], &["rs"])
}

/// Every file below these folders with one of these endings, with its text.
fn files(folders: &[&str], endings: &[&str]) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, endings: &[&str], found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, endings, found);
            } else if path.extension().is_some_and(|ending| endings.iter().any(|wanted| ending == *wanted)) {
                let text = fs::read_to_string(&path).expect("UTF-8");
                found.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    for folder in folders {
        walk(&root().join(folder), endings, &mut found);
    }
    found.sort();
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Lines before the unit tests at the end of a file.
fn code_lines(text: &str) -> usize {
    let tests = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().count()
}

fn is_test(path: &Path) -> bool {
    let path = shown(path);
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.contains("/benches/") || path.contains("/examples/")
}

#[test]
fn files_are_short() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|(path, text)| !is_test(path) && code_lines(text) > MAX_CODE_LINES)
        .map(|(path, text)| format!("{}: {} lines", shown(path), code_lines(text)))
        .collect();
    assert!(long.is_empty(), "find the missing noun in {long:#?}");
}

#[test]
fn files_say_what_they_are() {
    let silent: Vec<String> = sources()
        .iter()
        .filter(|(path, text)| !is_test(path) && text.lines().count() > UNEXPLAINED && !text.starts_with("//!"))
        .map(|(path, _)| shown(path))
        .collect();
    assert!(silent.is_empty(), "begin these with //!: {silent:#?}");
}

#[test]
fn rooms_have_names_that_say_something() {
    let vague: Vec<String> = sources()
        .iter()
        .filter(|(path, _)| {
            let path = path.with_extension("");
            path.iter().any(|part| BANNED.iter().any(|banned| part == *banned))
        })
        .map(|(path, _)| shown(path))
        .collect();
    assert!(vague.is_empty(), "name the thing: {vague:#?}");
}

/// Every Rust file with the name that messages show.
fn named_sources() -> impl Iterator<Item = (String, String)> {
    sources().into_iter().map(|(path, text)| (shown(&path), text))
}

/// Doc comments of a file: the line of each, and its text.
fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let Some(words) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            inside = false;
            continue;
        };
        match comments.last_mut().filter(|_| inside) {
            Some((_, comment)) => comment.push_str(words),
            None => comments.push((index + 1, words.trim_start().to_owned())),
        }
        inside = true;
    }
    comments
}

/// Reason why a doc comment breaks the house style.
fn unplain(comment: &str) -> Option<&'static str> {
    let first = comment.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    if OPENERS.contains(&first) {
        return Some("open with a noun or a verb");
    }
    let lower = comment.to_lowercase();
    if FORMULAS.iter().any(|formula| lower.contains(formula)) {
        return Some("say in one sentence why a constant has its value");
    }
    let cites = comment.match_indices("seed ").any(|(at, found)| {
        let rest = &comment[at + found.len()..];
        rest.starts_with(|letter: char| letter.is_ascii_uppercase())
            && rest.chars().skip(1).take(2).any(|c| c == '\u{a7}')
    });
    cites.then_some("cite docs/ or state the rule, not a document that readers do not have")
}

#[test]
fn doc_comments_are_plain() {
    let mut wrong = Vec::new();
    for (path, text) in named_sources() {
        for (line, comment) in doc_comments(&text) {
            let why = unplain(&comment);
            wrong.extend(why.map(|why| format!("{path}:{line}: {why}: {:.60}", comment)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Sections of RFCs are the only ones that readers can look up.
#[test]
fn nothing_cites_sections_of_documents_that_readers_do_not_have() {
    let mut wrong = Vec::new();
    for (path, text) in files(&["crates", "bench", "tests", "xtask"], &["rs", "py"]) {
        let cites = |line: &str| line.contains('\u{a7}') && !line.contains("RFC ");
        let lines = text.lines().enumerate().filter(|&(_, line)| cites(line));
        wrong.extend(lines.map(|(index, line)| format!("{}:{}: {}", shown(&path), index + 1, line.trim())));
    }
    assert!(wrong.is_empty(), "cite docs/ or state the rule: {wrong:#?}");
}

#[test]
fn types_have_the_names_of_the_field() {
    let mut wrong = Vec::new();
    for (path, text) in named_sources() {
        for line in text.lines() {
            let mut words =
                line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty());
            let declares = words.any(|word| matches!(word, "struct" | "enum" | "trait" | "type"));
            let name = words.next().filter(|_| declares && !line.trim_start().starts_with("//")).unwrap_or_default();
            if IMAGES.contains(&name) {
                wrong.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "use the field's term: {wrong:#?}");
}

/// The modules at the top of a crate: each with those that it uses.
fn modules(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = root().join("crates").join(name).join("src");
    let files: Vec<(String, String)> = files(&["crates"], &["rs"])
        .into_iter()
        .filter_map(|(path, text)| {
            let inside = path.strip_prefix(&src).ok()?;
            let top = inside.iter().next()?.to_str()?.trim_end_matches(".rs").to_owned();
            (top != "lib").then_some((top, text))
        })
        .collect();
    let known: BTreeSet<String> = files.iter().map(|(top, _)| top.clone()).collect();
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (top, text) in files {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let used = used_modules(code).into_iter().filter(|used| *used != top && known.contains(used));
        uses.entry(top.clone()).or_default().extend(used);
    }
    uses
}

/// The first names of all paths that begin with `crate::`, also of those in `use crate::{…}`.
fn used_modules(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let Some(group) = path.strip_prefix('{') else {
            found.insert(name(path));
            continue;
        };
        let (mut depth, mut begins) = (1_usize, true);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' if depth == 1 => break,
                '}' => depth -= 1,
                ',' if depth == 1 => begins = true,
                letter if letter.is_whitespace() => {}
                _ if begins && depth == 1 => {
                    found.insert(name(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn the_data_plane_has_no_ring_of_modules() {
    let mut uses = modules("mesh");
    assert!(uses.get("ingress").is_some_and(|used| used.contains("forward")), "the modules are found: {uses:#?}");
    // What uses nothing that is left is no part of a ring.
    loop {
        let left: BTreeSet<String> = uses.keys().cloned().collect();
        uses.retain(|_, used| !used.is_disjoint(&left));
        if uses.len() == left.len() {
            break;
        }
    }
    assert!(uses.is_empty(), "modules of mesh that use each other in a ring, or use one: {uses:#?}");
}

/// The table of docs/architecture.md: crate → crates that it may use; `None`: any.
fn allowed() -> BTreeMap<String, Option<BTreeSet<String>>> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("the map");
    let mut table = BTreeMap::new();
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        // A cell of code may hold a bar (`a | b`): the first and the last cell are what counts.
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(name), Some(uses)) = (cells.first(), cells.last()) else { continue };
        let uses = match *uses {
            "all" => None,
            "–" => Some(BTreeSet::new()),
            list => Some(list.split(',').map(|name| name.trim().to_owned()).collect()),
        };
        table.insert(name.trim_matches('`').to_owned(), uses);
    }
    table
}

#[test]
fn crates_use_only_what_the_map_allows() {
    let allowed = allowed();
    assert!(allowed.len() >= 9, "the table in docs/architecture.md is not where it was: {allowed:?}");
    for entry in fs::read_dir(root().join("crates")).expect("the crates").map(|entry| entry.expect("an entry")) {
        let manifest = entry.path().join("Cargo.toml");
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(text) = fs::read_to_string(&manifest) else { continue };
        let uses = allowed.get(&name).unwrap_or_else(|| panic!("{name} is not in the table of docs/architecture.md"));
        // Tests may use more than the crate does.
        let own = text.split("[dev-dependencies]").next().unwrap_or_default();
        for line in own.lines().filter_map(|line| line.strip_prefix("berth-")) {
            let used = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let fine = uses.as_ref().is_none_or(|uses| uses.contains(used));
            assert!(fine, "{name} uses {used}, which docs/architecture.md does not allow");
        }
        if matches!(name.as_str(), "spec" | "plan") {
            for banned in ["tokio", "tracing", "rand"] {
                let has = own.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(banned));
                assert!(!has, "{name} depends on {banned}: nouns and decisions wait for nothing");
            }
        }
    }
}

#[test]
fn the_map_names_files_that_there_are() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("the map");
    let section = text.split("## Where to add").nth(1).expect("the section");
    let section = section.split("\n## What is deliberately absent").next().unwrap_or(section);
    let paths: Vec<&str> = section.split('`').skip(1).step_by(2).filter(|word| word.contains("/src")).collect();
    assert!(paths.len() > 60, "the paths are found: {paths:?}");
    let crates = root().join("crates");
    let gone: Vec<_> = paths.iter().filter(|path| !path.contains("NAME") && !crates.join(path).exists()).collect();
    assert!(gone.is_empty(), "docs/architecture.md names files that are gone: {gone:#?}");
}
