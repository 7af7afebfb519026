//! Names defined in a Python module, as far as its text shows: enough to find a typing error before anything runs.

use std::collections::BTreeSet;

/// Names that a module has when it has been imported; `None` where that cannot be told from its text.
pub(super) fn names(source: &str) -> Option<BTreeSet<String>> {
    let (text, complete) = plain(source);
    // Python cannot read it either, and says better what is wrong where.
    if !complete {
        return None;
    }
    let made_otherwise = ["globals(", "setattr(", "exec(", "vars("];
    if made_otherwise.iter().any(|call| text.contains(call)) {
        return None;
    }
    let mut names = BTreeSet::new();
    // The indentation of the function or class that is being passed over: its names are its own. What stands below `if`,
    // `try` and `with` are names of the module.
    let mut inside: Option<usize> = None;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        if inside.is_some_and(|outer| indent > outer) {
            continue;
        }
        inside = None;
        let line = line.trim_start();
        let line = line.strip_prefix("async ").map_or(line, str::trim_start);
        if let Some(rest) = line.strip_prefix("def ").or_else(|| line.strip_prefix("class ")) {
            inside = Some(indent);
            let name = identifier(rest.trim_start());
            // What asks for a name that is not there is answered by this.
            if name == "__getattr__" {
                return None;
            }
            names.insert(name.to_owned());
        } else if line.starts_with("import ") || line.starts_with("from ") {
            let (_, imported) = line.split_once("import ")?;
            if imported.trim() == "*" {
                return None;
            }
            names.extend(imported.split(',').map(imported_as));
        } else if let Some((targets, _)) = line.rsplit_once('=') {
            names.extend(targets.split(|c: char| !is_name(c)).map(str::to_owned));
        }
    }
    names.remove("");
    Some(names)
}

/// `a`, `a as b` and `a.b`: the name that it gets.
fn imported_as(part: &str) -> String {
    let part = part.trim_matches(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
    let name = part.split_once(" as ").map_or(part, |(_, name)| name.trim());
    identifier(name).to_owned()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
    &text[..end]
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without comments and without what strings hold, every statement in one line; and whether every bracket is closed.
fn plain(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let (mut depth, mut rest) = (0_usize, source);
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '#' => length = rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => length = string(rest, c),
            '\\' if rest[1..].starts_with('\n') => {
                length = 2;
                out.push(' ');
            }
            '\n' if depth > 0 => out.push(' '),
            c => {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                out.push(c);
            }
        }
        rest = &rest[length..];
    }
    (out, depth == 0)
}

/// The length of the string that begins `text`, its quotes with it.
fn string(text: &str, quote: char) -> usize {
    let triple = quote.to_string().repeat(3);
    let is_triple = text.starts_with(&triple);
    let (end, mut at) = if is_triple { (triple.as_str(), 3) } else { (&triple[..1], 1) };
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(end) {
            return at + end.len();
        }
        if c == '\n' && !is_triple {
            return at;
        }
        // What is escaped ends nothing.
        let escaped = if c == '\\' { text[at + 1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        at += c.len_utf8() + escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::names;

    const MODULE: &str = r#"
"""def not_me(): pass
"""
import os, a.b.c
from x import (a, b as c)
from y import (
    d,  # and
    e as f,
)

async def g(x, y='def #', z="it's"):
    def inner(): pass
    y = 1

class K:
    h = 1
try:
    from fast import t
except ImportError:
    def u(): ...
if True:
    v = w = 1
l = lambda x: x
n: int = 3
# def commented(): pass
s = \
    4
"#;

    #[test]
    fn names_of_a_module_are_seen() {
        let found = names(MODULE).expect("it can be told");
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["K", "a", "c", "d", "f", "g", "int", "l", "n", "os", "s", "t", "u", "v", "w"]);
    }

    #[test]
    fn where_it_cannot_be_told_nothing_is() {
        for source in [
            "from x import *\n",
            "globals()['f'] = 1\n",
            "def __getattr__(name):\n    return 1\n",
            "exec(open('x').read())\n",
            "def f(:\n    pass\n",
        ] {
            assert_eq!(names(source), None, "{source}");
        }
        for source in ["", "\"", "'''", "(", ")", "\\", "'\\", "def", "import ", "from x", "ä = 'ö"] {
            let _ = names(source);
        }
    }
}
