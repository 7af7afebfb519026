//! Functions as models: the artifact of a function (docs/functions.md), loaded by code that is part of Berth (`berth.functions` of
//! the Python package).

use serde_json::{Value, json};

use super::{Function, Interface, PinnedCard, estimator};

/// The module of Berth's package that loads it.
const MODULE: &str = "berth.functions";

impl PinnedCard {
    /// The card of a function. `artifact` is the URI of its ZIP file, which brings its packages; `probe` a request that it answers.
    #[must_use]
    pub fn of_function(python: &str, artifact: &str, probe: Option<&Value>) -> Self {
        let mut pinned = estimator::card("function", python, Vec::new());
        let card = &mut pinned.card;
        let unchanged = Function { module: MODULE.to_owned(), function: "unchanged".to_owned(), config: None };
        artifact.clone_into(&mut card.artifacts.model_path);
        card.code.entrypoint = Some(format!("{MODULE}:load"));
        card.preprocessing = unchanged.clone();
        card.postprocessing = unchanged;
        // Any JSON. A request that is given must be answered; one that is guessed need not.
        let input_schema = probe.map_or_else(|| json!({}), |probe| json!({"examples": [probe]}));
        card.interface = Interface { input_schema, output_schema: json!({}), batch_size: None };
        pinned
    }
}
