//! From the fields of an alias to its targets: the rules that concern more than one field.

use std::collections::BTreeSet;

use super::Problems;
use crate::{
    DeploymentName, Namespace,
    manifest::{
        raw::{RawAlias, RawSticky, StickyBy, StickyWord},
        scalar::Problem,
    },
    routes::Stickiness,
};

/// Deployments that one alias may name. Each costs a gateway a look at every choice.
const MAX_TARGETS: usize = 64;

const TARGETS: &str = "spec.targets";
const STICKY: &str = "spec.sticky";

/// Targets and stickiness, or every broken rule.
pub(in crate::manifest) fn resolve(
    document: &RawAlias,
    name: &DeploymentName,
) -> Result<(Vec<(DeploymentName, u32)>, Stickiness), Problems> {
    let mut problems = Problems::new();
    super::check_keys("metadata.labels", document.metadata.labels.keys(), &mut problems);
    super::check_keys("metadata.annotations", document.metadata.annotations.keys(), &mut problems);
    let targets = targets(document, name, &mut problems);
    let sticky = sticky(document.spec.sticky.as_ref(), &mut problems);
    if problems.is_empty() { Ok((targets, sticky)) } else { Err(problems) }
}

fn targets(document: &RawAlias, name: &DeploymentName, problems: &mut Problems) -> Vec<(DeploymentName, u32)> {
    let namespace: Namespace = name.to_namespace();
    let (mut seen, mut targets) = (BTreeSet::new(), Vec::new());
    let mut wrong = |message: String, remedy: &str| problems.push((TARGETS, Problem::new(message, remedy)));
    for target in &document.spec.targets {
        let deployment = target.deployment.0.moved_to(&namespace);
        if deployment == *name {
            wrong(format!("{name} leads to itself"), "name the deployments that should answer");
        }
        if !seen.insert(deployment.clone()) {
            wrong(format!("{deployment} is named twice"), "add the weights up in one entry");
        }
        targets.push((deployment, target.weight.get()));
    }
    if targets.len() > MAX_TARGETS {
        wrong(format!("{} targets are too many", targets.len()), "keep at most 64");
    }
    if !targets.is_empty() && targets.iter().all(|(_, weight)| *weight == 0) {
        wrong("no target has a weight above 0".to_owned(), "give one of them a weight of 1 or more");
    }
    targets
}

fn sticky(raw: Option<&RawSticky>, problems: &mut Problems) -> Stickiness {
    let mut wrong = |message: String, remedy: &str| {
        problems.push((STICKY, Problem::new(message, remedy)));
        Stickiness::None
    };
    match raw {
        None => Stickiness::None,
        Some(RawSticky::Word(StickyWord::Client)) => Stickiness::Client,
        Some(RawSticky::By(StickyBy { header: Some(header), body_field: None })) => {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if header.is_empty() || !header.chars().all(token) {
                return wrong(format!("{header:?} is not the name of a header"), "write for example x-user");
            }
            Stickiness::Header(header.to_ascii_lowercase())
        }
        Some(RawSticky::By(StickyBy { header: None, body_field: Some(field) })) => {
            if field.split('.').any(str::is_empty) {
                return wrong(format!("{field:?} is not the path of a field"), "write for example parameters.user");
            }
            Stickiness::Field(field.clone())
        }
        Some(RawSticky::By(_)) => {
            wrong("sticky names not exactly one property".to_owned(), "write header or bodyField, one of them")
        }
    }
}
