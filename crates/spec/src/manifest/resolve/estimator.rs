//! A model without a card that Berth runs by itself.

use std::sync::Arc;

use super::Problems;
use crate::{
    ModelFormat, PinnedCard,
    card::estimator::{formats, usual_packages},
    manifest::{raw::RawModel, scalar::Problem},
};

/// The most packages that an environment may name.
const MOST: usize = 500;

/// The card of a model that names its environment; `None`: it names none, or it is wrong.
pub(super) fn card(raw: &RawModel, format: &ModelFormat, problems: &mut Problems) -> Option<Arc<PinnedCard>> {
    let environment = raw.environment.as_ref()?;
    let name = format.name();
    if !formats().any(|known| known == name) {
        let known = formats().collect::<Vec<_>>().join(", ");
        let message = format!("an environment is for {known}, not for {name}");
        problems.push(("spec.model.environment", Problem::new(message, "remove it, or correct the format")));
        return None;
    }
    let packages = if environment.packages.is_empty() {
        usual_packages(name).iter().map(|&package| package.to_owned()).collect()
    } else {
        environment.packages.clone()
    };
    let path = "spec.model.environment.packages";
    if packages.is_empty() {
        let remedy = "copy the lines of the model's requirements.txt, each NAME==VERSION";
        problems.push((path, Problem::new(format!("a model of format {name} says which packages it needs"), remedy)));
    }
    if packages.len() > MOST {
        problems.push((path, Problem::new(format!("{} packages are too many", packages.len()), "name at most 500")));
    }
    if let Some(odd) = packages.iter().find(|package| !package.contains("==")) {
        problems.push((path, Problem::new(format!("{odd:?} is not pinned"), "write NAME==VERSION")));
    }
    Some(PinnedCard::of_estimator(name, &environment.python, packages))
}
