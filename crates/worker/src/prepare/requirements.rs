//! Which packages a card's environment has: those that it names, and its framework where it does not name it.

use berth_spec::{
    FailureCategory,
    card::{Framework, Runtime},
};

use crate::fault::Fault;

/// The most packages that a card may name: enough for one that pins all its dependencies.
const MOST: usize = 500;

/// The packages to be installed, in order and each once.
pub(super) fn of(runtime: &Runtime) -> Result<Vec<String>, Fault> {
    if runtime.dependencies.len() > MOST {
        let message = format!("runtime.dependencies names {} packages, at most {MOST}", runtime.dependencies.len());
        return Err(Fault::new(FailureCategory::Dependencies, message));
    }
    let mut packages = runtime.dependencies.clone();
    packages.extend(framework(runtime));
    if let Some(odd) = packages.iter().find(|package| !is_pinned(package)) {
        let message = format!("{odd:?} is no pinned package: write NAME==VERSION in runtime.dependencies");
        return Err(Fault::new(FailureCategory::Dependencies, message));
    }
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Packages of a framework, the usual one first: any of them is it. And how Debian calls it.
const fn packages_of(framework: Framework) -> (&'static [&'static str], &'static [&'static str]) {
    match framework {
        Framework::Tensorflow => {
            (&["tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly"], &[])
        }
        Framework::Pytorch => (&["torch"], &["python3-torch"]),
        Framework::Sklearn => (&["scikit-learn"], &["python3-sklearn"]),
        Framework::Xgboost => (&["xgboost", "xgboost-cpu"], &["python3-xgboost"]),
        Framework::Onnx => (
            &["onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"],
            &["python3-onnxruntime"],
        ),
        Framework::Custom => (&[], &[]),
    }
}

/// The package that `framework` and `framework_version` stand for, if neither the dependencies nor the system's
/// packages have it.
fn framework(runtime: &Runtime) -> Option<String> {
    let (names, system) = packages_of(runtime.framework);
    let named = |package: &String| names.contains(&name_of(package).as_str());
    let there = runtime.dependencies.iter().any(named)
        || runtime.system_packages.iter().any(|package| system.contains(&package.as_str()));
    let usual = names.first().filter(|_| !there)?;
    Some(format!("{usual}=={}", runtime.framework_version.trim()))
}

/// The name of a package as indexes compare it: `Scikit_Learn[x]==1.5.0` is `scikit-learn`.
fn name_of(package: &str) -> String {
    let name = package.split(['=', '[', ' ']).next().unwrap_or_default();
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

/// `NAME==VERSION` or `NAME[EXTRA]==VERSION`, and nothing that an installer would take for an option, a URL or a path.
fn is_pinned(package: &str) -> bool {
    let Some((name, version)) = package.split_once("==") else { return false };
    let (name, extras) = match name.split_once('[') {
        Some((name, extras)) => (name, extras.strip_suffix(']').unwrap_or("?")),
        None => (name, "x"),
    };
    let word = |text: &str, also: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
    };
    package.len() <= 200 && word(name, "-_.") && word(extras, "-_.,") && word(version, ".+!_-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(framework: Framework, dependencies: &[&str], system: &[&str]) -> Runtime {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        Runtime {
            framework,
            framework_version: "1.5.0".to_owned(),
            python_version: "3.11".to_owned(),
            dependencies: owned(dependencies),
            system_packages: owned(system),
        }
    }

    #[test]
    fn the_framework_is_installed_unless_it_is_named() {
        for (framework, dependencies, system, expected) in [
            (Framework::Sklearn, &["numpy==1.26.0"][..], &[][..], &["numpy==1.26.0", "scikit-learn==1.5.0"][..]),
            (Framework::Sklearn, &["Scikit_Learn==1.4.0"], &[], &["Scikit_Learn==1.4.0"]),
            (Framework::Pytorch, &[], &[], &["torch==1.5.0"]),
            (Framework::Pytorch, &[], &["python3-torch"], &[]),
            (Framework::Onnx, &["onnxruntime-gpu==1.18.0"], &[], &["onnxruntime-gpu==1.18.0"]),
            (Framework::Tensorflow, &["b==1", "a==1", "b==1"], &[], &["a==1", "b==1", "tensorflow==1.5.0"]),
            (Framework::Custom, &[], &[], &[]),
        ] {
            assert_eq!(of(&runtime(framework, dependencies, system)).expect("fine"), expected, "{dependencies:?}");
        }
    }

    #[test]
    fn nothing_but_pinned_packages() {
        for fine in ["a==1.0.0", "a-b_c.d[x,y]==1.0rc1+cpu", "a==1!2.0"] {
            assert!(is_pinned(fine), "{fine}");
        }
        for odd in ["a", "-r==x", "a>=1", "a==", "==1", "a==1 --index-url x", "a @ https://h/x", "a==*", "a[==1", ""] {
            assert!(!is_pinned(odd), "{odd}");
            assert_eq!(
                of(&runtime(Framework::Custom, &[odd], &[])).expect_err(odd).category,
                FailureCategory::Dependencies
            );
        }
    }
}
