//! A model without a card that Berth runs by itself.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
    sync::Arc,
};

use super::Problems;
use crate::{
    ModelFormat, PinnedCard,
    card::{
        estimator::{Packages, formats, own_file, usual_packages},
        package::Pin,
        requirements::{MOST_PINS, remedy},
    },
    manifest::{raw::RawModel, scalar::Problem},
};

const PACKAGES: &str = "spec.model.environment.packages";
const REQUIREMENTS: &str = "spec.model.environment.requirements";

/// The most bytes of one package's line: names and versions are short, and a marker for each system and version of
/// Python fits.
const MAX_PACKAGE_BYTES: usize = 500;

/// The most bytes of the path of a file in an artifact: the longest name that common file systems take, and the file
/// lies at the top as a rule.
const LONGEST_PATH: usize = 255;

/// The oldest Python 3 that runs models: Berth's own code in the model's process uses nothing newer.
const OLDEST: u8 = 8;

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
    check_python(&environment.python, problems);
    let packages = match (environment.packages.as_slice(), &environment.requirements) {
        ([], Some(file)) => {
            check_file(file, problems);
            Packages::InFile(file.clone())
        }
        ([], None) => from_nothing(name, problems),
        (packages, None) => {
            check_packages(packages, problems);
            Packages::Pinned(packages.to_vec())
        }
        ([_, ..], Some(_)) => {
            let message = "the packages are listed here, and in a file of the artifact";
            problems.push((REQUIREMENTS, Problem::new(message, "leave packages or requirements out")));
            Packages::Pinned(Vec::new())
        }
    };
    Some(PinnedCard::of_estimator(name, &environment.python, packages))
}

/// The packages of a model that names none.
fn from_nothing(format: &str, problems: &mut Problems) -> Packages {
    if let Some(file) = own_file(format) {
        return Packages::InFile(file.to_owned());
    }
    let usual = usual_packages(format);
    if usual.is_empty() {
        let message = format!("a model of format {format} says which packages it needs");
        let ways = "copy the lines of the model's requirements.txt, each NAME==VERSION, or name the file in its folder: \
                    requirements: requirements.txt";
        problems.push((PACKAGES, Problem::new(message, ways)));
    }
    Packages::Pinned(usual.iter().map(|&package| package.to_owned()).collect())
}

fn check_python(version: &str, problems: &mut Problems) {
    let minor = version.strip_prefix("3.").filter(|minor| minor.bytes().all(|byte| byte.is_ascii_digit()));
    let runs = minor.filter(|minor| minor.len() <= 2).and_then(|minor| minor.parse::<u8>().ok());
    if runs.is_none_or(|minor| minor < OLDEST) {
        let message = format!("{version:?} is no version of Python that runs models");
        let remedy = format!("write 3.MINOR, from 3.{OLDEST} on, for example \"3.12\"");
        problems.push(("spec.model.environment.python", Problem::new(message, remedy)));
    }
}

/// Pins as cards have them. Each is told once, and the first of them only.
fn check_packages(packages: &[String], problems: &mut Problems) {
    let mut wrong = |message: String, remedy: &str| problems.push((PACKAGES, Problem::new(message, remedy)));
    if packages.len() > MOST_PINS {
        wrong(format!("{} packages are too many", packages.len()), "name at most 500");
    }
    let read = |package: &String| Pin::read_marked(package).filter(|_| package.len() <= MAX_PACKAGE_BYTES).is_some();
    if let Some(odd) = packages.iter().find(|package| !read(package)) {
        let shown: String = odd.chars().take(LONGEST_PATH).collect();
        wrong(format!("{shown:?} is not pinned"), remedy(odd));
        return;
    }
    let mut versions: BTreeMap<String, &str> = BTreeMap::new();
    // With a marker, each may be for another machine.
    for pin in packages.iter().filter_map(|package| Pin::read(package)) {
        let other = versions.insert(pin.normal_name(), pin.version).filter(|other| !pin.is_met_by(other));
        if let Some(other) = other {
            wrong(format!("{} is pinned to {other} and to {}", pin.name, pin.version), "keep one of them");
            return;
        }
    }
}

fn check_file(path: &str, problems: &mut Problems) {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
    let fits = !path.is_empty() && path.len() <= LONGEST_PATH && !path.contains(['\0', '\n', '\\']);
    if !fits || !Path::new(path).components().all(inside) {
        let message = format!("{path:?} is no path in the artifact's folder");
        problems.push((REQUIREMENTS, Problem::new(message, "write it from the folder on: requirements.txt")));
    }
}
