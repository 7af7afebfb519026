//! Lists of requirements, checked before uv or pip reads them: a line of the code must not undo that only wheels are installed.
//!
//! Each line of the file is checked by itself, also where a backslash joins it to the next one: nothing that a line says alone is
//! hidden by the others.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use super::BuildError;

/// Options that say which wheels are taken, and from where.
const VALUED: [&str; 6] = ["-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host"];

/// Options without a value that build nothing.
const FLAGS: [&str; 4] = ["--no-index", "--require-hashes", "--pre", "--prefer-binary"];

/// Options that name another list.
const LISTS: [&str; 4] = ["-r", "--requirement", "-c", "--constraint"];

/// Endings of archives: pip takes a requirement with such a name for a file of the code.
const ARCHIVES: [&str; 8] = [".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz", ".xz", ".whl"];

/// Checks a list of the code and those that it names. `pip`: pip installs, which would build what a requirement names by its place;
/// uv refuses that itself.
pub(super) fn check(code: &Path, list: &str, pip: bool) -> Result<(), BuildError> {
    let (mut open, mut seen) = (vec![PathBuf::from(list)], BTreeSet::new());
    while let Some(list) = open.pop() {
        if !seen.insert(list.clone()) {
            continue;
        }
        let shown = list.display();
        let refused = |why: String| BuildError::lasting("InvalidSource", format!("{shown}: {why}"));
        let bytes = fs_err::read(code.join(&list));
        let bytes = bytes.map_err(|_| refused("there is no such file in the code".to_owned()))?;
        let text = String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8".to_owned()))?;
        if text.split('\n').take(2).any(names_encoding) {
            // pip would read other lines than those that are checked here.
            let why = "a comment at the top names an encoding: save the file as UTF-8, and remove the comment";
            return Err(refused(why.to_owned()));
        }
        for (number, line) in text.trim_start_matches('\u{feff}').split(ends_a_line).enumerate() {
            let refused = |why: String| refused(format!("line {}: {why}", number + 1));
            for named in lists_of(line, pip).map_err(refused)? {
                open.push(beside(&list, named).ok_or_else(|| {
                    refused(format!("{named:?} leads out of the code: name a file in it, by a path without `..`"))
                })?);
            }
        }
    }
    Ok(())
}

/// True for a comment in which pip looks for the encoding of the file.
fn names_encoding(line: &str) -> bool {
    line.starts_with('#') && (line.contains("coding:") || line.contains("coding="))
}

/// The ends of lines that Python knows.
fn ends_a_line(letter: char) -> bool {
    matches!(letter, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The path of a list that another one names; `None` if that is not in the code, or a URL.
fn beside(list: &Path, named: &str) -> Option<PathBuf> {
    let inside = Path::new(named).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let folder = list.parent().unwrap_or(Path::new(""));
    (inside && !named.contains(':')).then(|| folder.join(named))
}

/// The lists that a line names, or the reason why it is refused.
fn lists_of(line: &str, pip: bool) -> Result<Vec<&str>, String> {
    let line = line.strip_suffix('\\').unwrap_or(line);
    let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    let (mut requirement, mut lists) = (Vec::new(), Vec::new());
    let mut words = words.peekable();
    while let Some(word) = words.next_if(|word| !word.starts_with('-')) {
        requirement.push(word);
    }
    if pip {
        by_name_or_wheel(&requirement.join(" "))?;
    }
    while let Some(word) = words.next() {
        let (option, glued) = if word.starts_with("--") {
            word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)))
        } else {
            // `-rFILE`
            let short = word.get(..2).filter(|short| *short != word);
            short.map_or((word, None), |short| (short, word.get(2..)))
        };
        if FLAGS.contains(&option) && glued.is_none() && requirement.is_empty() {
            continue;
        }
        let is_list = LISTS.contains(&option);
        let allowed = option == "--hash" || (requirement.is_empty() && (is_list || VALUED.contains(&option)));
        if !allowed {
            return Err(format!(
                "the option {option} is refused, as it may run code of the source: only wheels are installed; remove it"
            ));
        }
        let value = glued.or_else(|| words.next_if(|word| !word.starts_with('-'))).unwrap_or_default();
        // pip joins what is quoted and fills in variables, uv ends a value at `#`: both would read another value than this one.
        if value.is_empty() || value.starts_with('=') || value.contains(['"', '\'', '\\', '$', '#']) {
            return Err(format!("the option {option} needs a value on its line, without quotes, `\\`, `$` and `#`"));
        }
        if is_list {
            lists.push(value);
        }
    }
    Ok(lists)
}

/// Refuses a requirement that is neither the name of a package nor, with a name, the address of a wheel.
fn by_name_or_wheel(requirement: &str) -> Result<(), String> {
    let of_names = |text: &str| {
        let known = |letter: char| letter.is_ascii_alphanumeric() || "._-[], <>=!~*+()".contains(letter);
        text.chars().all(known) && !text.starts_with('.')
    };
    let place = requirement.split(';').next().unwrap_or_default().trim();
    let is_right = match place.split_once('@') {
        Some((name, address)) => {
            let path = address.trim().split(['#', '?']).next().unwrap_or_default();
            let is_web = path.starts_with("https://") || path.starts_with("http://");
            is_web && of_names(name) && path.ends_with(".whl") && !path.contains([' ', '$'])
        }
        None => of_names(place) && !ARCHIVES.iter().any(|ending| place.to_ascii_lowercase().ends_with(ending)),
    };
    if is_right {
        return Ok(());
    }
    Err(format!(
        "{place:?} may be built from source: name a package of the index, or a wheel as in NAME @ https://HOST/FILE.whl"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(files: &[(&str, &str)], pip: bool) -> Option<String> {
        let code = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = code.path().join(name);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs_err::write(path, text).expect("written");
        }
        check(code.path(), "requirements.txt", pip).err().map(BuildError::text)
    }

    #[test]
    fn lists_of_wheels_pass() {
        let lists = [
            "",
            "six==1.16.0\n# -e .\n\n  numpy >= 2, < 3 ; python_version >= \"3.11\"  # --no-binary\n",
            "flask==3.0.0 \\\n    --hash=sha256:00 \\\n    --hash sha256:11\n",
            "uvicorn[standard]~=0.30\nazure-functions\nfoo @ https://example.org/foo-1.0-py3-none-any.whl#sha256=00\n",
            "--index-url https://example.org/simple\n--extra-index-url=https://example.org/cpu\n-f wheels\n--pre\n",
            "# all of them\n-r more/base.txt\n-cmore/limits.txt\n",
        ];
        for list in lists {
            let files = [
                ("requirements.txt", list),
                ("more/base.txt", "-r other.txt\n"),
                ("more/other.txt", "-r base.txt\nsix\n"),
                ("more/limits.txt", "six<2\n"),
            ];
            assert_eq!((said(&files, true), said(&files, false)), (None, None), "{list}");
        }
    }

    #[test]
    fn lines_that_build_are_refused() {
        let lists = [
            ("six\n-e .\n", "line 2: the option -e is refused"),
            ("--editable=./x\n", "the option --editable is refused"),
            ("--no-binary :all:\n", "the option --no-binary is refused"),
            ("--no-bin=:all:\n", "the option --no-bin is refused"),
            ("--only-binary=:none:\n", "the option --only-binary is refused"),
            ("--pre -e .\n", "the option -e is refused"),
            ("six --no-binary=six\n", "the option --no-binary is refused"),
            ("six --hash=sha256:00 \"--no-binary=six\"\n", "the option \"- is refused"),
            ("six --hash=\"a --no-binary=six\"\n", "without quotes"),
            ("six # a comment \\\n-e .\n", "line 2: the option -e is refused"),
            ("# a comment\x0c-e .\n", "line 2: the option -e is refused"),
            ("--no-\\\nbinary=:all:\n", "the option --no- is refused"),
            ("# coding: utf-7\nsix\n", "names an encoding"),
            ("-r ../other.txt\n", "leads out of the code"),
            ("-r /etc/passwd\n", "leads out of the code"),
            ("-r https://example.org/list.txt\n", "leads out of the code"),
            ("-r=deep.txt\n", "needs a value"),
            ("-r ${LANG}/deep.txt\n", "needs a value"),
            ("-r deep.txt#more\n", "needs a value"),
            ("-r none.txt\n", "none.txt: there is no such file"),
            ("-r deep.txt\n", "deep.txt: line 1: the option -e is refused"),
        ];
        for (list, wanted) in lists {
            for pip in [true, false] {
                let found = said(&[("requirements.txt", list), ("deep.txt", "-e .")], pip).unwrap_or_default();
                assert!(found.contains(wanted), "{list}: {found}");
            }
        }
    }

    #[test]
    fn pip_is_given_no_sources() {
        for requirement in [
            ".",
            "./x",
            "x.tar.gz",
            "x.whl",
            "x @ file:///srv/x.whl",
            "x @ git+https://example.org/x.whl",
            "https://example.org/x.whl",
            "x @ https://example.org/x.tar.gz#/x.whl",
        ] {
            let files = [("requirements.txt", requirement)];
            let found = said(&files, true).unwrap_or_default();
            assert!(found.contains("may be built from source"), "{requirement}: {found}");
            assert_eq!(said(&files, false), None, "uv refuses it: {requirement}");
        }
    }
}
