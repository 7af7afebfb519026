//! Reads how long each test took, from what libtest prints and from the reports of pytest.

/// One test and its time in seconds.
#[derive(Debug, PartialEq)]
pub(crate) struct Timed {
    pub(crate) seconds: f64,
    pub(crate) name: String,
}

/// Reads lines such as `test laws::order ... ok <1.234s>`.
pub(crate) fn of_libtest(suite: &str, output: &str) -> Vec<Timed> {
    let timed = |line: &str| {
        let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let seconds = rest.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
        Some(Timed { seconds, name: format!("{suite} {name}") })
    };
    output.lines().filter_map(timed).collect()
}

/// Drops the lines of tests that passed: a few thousand, which hide those that failed.
pub(crate) fn without_passed(output: &str) -> String {
    let passed = |line: &str| {
        let result = line.strip_prefix("test ").and_then(|line| line.split_once(" ... "));
        result.is_some_and(|(_, result)| result == "ok" || result.starts_with("ok <"))
    };
    output.lines().filter(|line| !passed(line) && !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// Reads the `testcase` elements of a JUnit report.
pub(crate) fn of_pytest(report: &str) -> Vec<Timed> {
    let timed = |element: &str| {
        let seconds = attribute(element, "time")?.parse().ok()?;
        let name = format!("{} {}", attribute(element, "classname")?, attribute(element, "name")?);
        Some(Timed { seconds, name })
    };
    report.split("<testcase ").skip(1).filter_map(timed).collect()
}

fn attribute(element: &str, name: &str) -> Option<String> {
    let element = element.split('>').next()?;
    // A blank before: `name` is also the end of `classname`.
    let begin = format!(" {element}").find(&format!(" {name}=\""))? + name.len() + 2;
    let value = element[begin..].split('"').next()?;
    Some(value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// Prints the slowest twenty.
pub(crate) fn print(mut tests: Vec<Timed>) {
    if tests.is_empty() {
        return;
    }
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("\nSlowest of {} tests:", tests.len());
    for Timed { seconds, name } in tests.iter().take(20) {
        println!("  {seconds:>6.1} s  {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBTEST: &str = "\nrunning 3 tests\ntest a::b ... ok <0.120s>\ntest c ... FAILED <1.512s>\ntest d ... ignored\n\n\
                           failures:\n\n---- c stdout ----\nhello\n\ntest result: FAILED. 1 passed; 1 failed;\n";

    #[test]
    fn times_of_libtest_are_read() {
        let timed = |seconds, name: &str| Timed { seconds, name: name.into() };
        assert_eq!(of_libtest("plan", LIBTEST), [timed(0.12, "plan a::b"), timed(1.512, "plan c")]);
    }

    #[test]
    fn failures_and_the_closing_line_are_kept() {
        let kept = without_passed(LIBTEST);
        assert!(!kept.contains("a::b") && kept.contains("test c ... FAILED"), "{kept}");
        assert!(kept.ends_with("hello\ntest result: FAILED. 1 passed; 1 failed;\n"), "{kept}");
    }

    #[test]
    fn times_of_pytest_are_read() {
        let report = "<testsuite name=\"pytest\" time=\"3.5\"><testcase classname=\"e2e.test_cli\" \
                      name=\"test_x[&lt;a&gt;]\" time=\"1.25\"><failure message=\"no\">x</failure></testcase></testsuite>";
        assert_eq!(of_pytest(report), [Timed { seconds: 1.25, name: "e2e.test_cli test_x[<a>]".into() }]);
    }
}
