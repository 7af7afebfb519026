//! Command lines in pages and help texts: each names commands and flags that exist.

use std::path::Path;

use clap::Command;

/// The first word of a command line that does not exist.
fn unknown(root: &Command, line: &str) -> Option<String> {
    let mut command = root;
    let mut words = line.split_whitespace().skip(1);
    while let Some(word) = words.next() {
        // What follows is another command, a comment, or a place for any number of words.
        if matches!(word, "|" | "||" | "&&" | "&" | ";" | ">" | ">>" | "<" | "2>&1" | "->" | "→")
            || word.starts_with('#')
            || word.contains("$(")
        {
            return None;
        }
        let ends = word.ends_with([';', ')']) && !word.contains('(');
        let word = word.trim_end_matches([';', ')', ',', '.']).trim_start_matches('[').trim_end_matches(']');
        if word.len() > 1 && word.starts_with('-') {
            let name = word.split('=').next().unwrap_or(word);
            let Some(takes_value) = flag(root, command, name) else { return Some(name.to_owned()) };
            if takes_value && !word.contains('=') && (name.starts_with("--") || name.len() == 2) {
                words.next();
            }
        } else if let Some(inner) = command.find_subcommand(word) {
            command = inner;
        } else if command.has_subcommands() && command.get_positionals().next().is_none() && is_word(word) {
            return Some(word.to_owned());
        }
        if ends {
            return None;
        }
    }
    None
}

/// If a flag takes the next word; `None` if nobody knows it.
fn flag(root: &Command, command: &Command, name: &str) -> Option<bool> {
    let long = name.strip_prefix("--");
    let short = name.chars().nth(1).filter(|_| long.is_none());
    let known = command.get_arguments().chain(root.get_arguments().filter(|arg| arg.is_global_set())).find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        long.is_some_and(|name| arg.get_long() == Some(name) || aliases.contains(&name))
            || short.is_some_and(|letter| arg.get_short() == Some(letter))
    });
    let usual = matches!(name, "--" | "--help" | "-h" | "--version" | "-V") || name.contains('…');
    let takes_value = known.map(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set());
    // `berth config show` means `up` where no server is named.
    let default = || command.find_subcommand("up").filter(|_| command.get_name() == "show");
    takes_value.or(usual.then_some(false)).or_else(|| flag(root, default()?, name))
}

/// A word as commands are written: no placeholder, no path.
fn is_word(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// Lines of code that begin with `berth`, and code in the text that does. A line that ends with a backslash goes on.
fn lines(page: &str) -> Vec<String> {
    let (mut found, mut inside, mut open) = (Vec::new(), false, None::<String>);
    for line in page.lines() {
        let text = line.trim_start();
        if text.starts_with("```") {
            inside = !inside;
            continue;
        }
        if !inside {
            found.extend(
                line.split('`').skip(1).step_by(2).filter(|code| code.starts_with("berth ")).map(str::to_owned),
            );
            continue;
        }
        let text = text.strip_prefix("$ ").unwrap_or(text);
        // Help texts explain a command beside it, after spaces.
        let text = text.split_once("   ").filter(|_| !text.ends_with('\\')).map_or(text, |(command, _)| command);
        let whole = match open.take() {
            Some(begun) => format!("{begun} {text}"),
            None if text.starts_with("berth ") => text.to_owned(),
            None => continue,
        };
        match whole.strip_suffix('\\') {
            Some(begun) => open = Some(begun.to_owned()),
            None => found.push(whole),
        }
    }
    found
}

#[test]
fn what_pages_tell_people_to_type_exists() {
    let mut root = crate::args::command();
    root.build();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md")];
    pages.extend(fs_err::read_dir(top.join("docs")).expect("pages").map(|entry| entry.expect("a page").path()));
    let mut wrong = Vec::new();
    let mut read = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        for line in lines(&fs_err::read_to_string(page).expect("a page")) {
            read += 1;
            if let Some(word) = unknown(&root, &line) {
                wrong.push(format!("{}: no {word} in: {line}", page.file_name().expect("a name").display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 500, "only {read} command lines were found");
}

#[test]
fn a_command_or_flag_that_does_not_exist_is_found() {
    let mut root = crate::args::command();
    root.build();
    let first = |line: &str| unknown(&root, line);
    assert_eq!(first("berth get deployments -o wide | head"), None);
    assert_eq!(first("berth up ./models --tls self & berth nonsense"), None);
    assert_eq!(first("berth gte deployments"), Some("gte".to_owned()));
    assert_eq!(first("berth rollout unod iris"), Some("unod".to_owned()));
    assert_eq!(first("berth up ./models --tsl self"), Some("--tsl".to_owned()));
    let page = "Try `berth gte x`.\n```sh\nberth node … \\\n   --nmae a   # says\n```\n";
    let found: Vec<_> = lines(page).iter().filter_map(|line| first(line)).collect();
    assert_eq!(found, ["gte", "--nmae"]);
}
