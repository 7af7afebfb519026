//! Properties that hold for any text as a document of a registry or of a model repository.

use std::sync::LazyLock;

use berth_git::Protocols;
use berth_registry::{CardRules, Matrix, Problem, Settings, check_card};

static MATRIX: LazyLock<Matrix> = LazyLock::new(Matrix::embedded);

/// Nothing panics; what is refused has a problem, and every problem has words and a place that is in the text.
pub(crate) fn registry(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let rules = CardRules { matrix: &MATRIX, today: "2026-11-22", protocols: Protocols::default() };
    let checked = check_card(text, "model-card.yaml", &rules);
    assert!(checked.card.is_some() || !checked.problems.is_empty());
    told(&checked.problems, text);
    // The others read YAML with the same code, which stops at the same place.
    if checked.problems.iter().any(|problem| problem.rule == "syntax") {
        return;
    }
    told(&Settings::read(text).err().unwrap_or_default(), text);
    told(&Matrix::read(text, "matrix.yaml").err().unwrap_or_default(), text);
}

fn told(problems: &[Problem], text: &str) {
    // YAML breaks lines at a lone carriage return, too.
    let lines = text.split(['\n', '\r']).count();
    for problem in problems {
        assert!(problem.line as usize <= lines + 1, "{problem:?}");
        assert!(!problem.render().is_empty(), "{problem:?}");
    }
}
