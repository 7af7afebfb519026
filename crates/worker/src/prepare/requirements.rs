//! Finds the packages of a card's environment: those that it names, and its framework where it does not name it.

use berth_spec::{
    FailureCategory,
    card::{Framework, Runtime, package::Pin},
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
    if let Some(odd) = packages.iter().find(|package| Pin::read_marked(package).is_none()) {
        let message = format!("{odd:?} is no pinned package: write NAME==VERSION in runtime.dependencies");
        return Err(Fault::new(FailureCategory::Dependencies, message));
    }
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Debian's packages of a framework.
const fn system_packages(framework: Framework) -> &'static [&'static str] {
    match framework {
        Framework::Pytorch => &["python3-torch"],
        Framework::Sklearn => &["python3-sklearn"],
        Framework::Xgboost => &["python3-xgboost"],
        Framework::Onnx => &["python3-onnxruntime"],
        Framework::Tensorflow | Framework::Custom => &[],
    }
}

/// The package that `framework` and `framework_version` stand for, if neither the dependencies nor the system's
/// packages have it.
fn framework(runtime: &Runtime) -> Option<String> {
    let (names, system) = (runtime.framework.packages(), system_packages(runtime.framework));
    let named =
        |package: &String| Pin::read_marked(package).is_some_and(|pin| names.contains(&pin.normal_name().as_str()));
    let there = runtime.dependencies.iter().any(named)
        || runtime.system_packages.iter().any(|package| system.contains(&package.as_str()));
    let usual = names.first().filter(|_| !there)?;
    Some(format!("{usual}=={}", runtime.framework_version.trim()))
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
            dependencies_lock: None,
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
            (Framework::Pytorch, &["torch==2 ; python_version < '3.13'"], &[], &["torch==2 ; python_version < '3.13'"]),
        ] {
            assert_eq!(of(&runtime(framework, dependencies, system)).expect("fine"), expected, "{dependencies:?}");
        }
    }

    #[test]
    fn nothing_but_pinned_packages() {
        for fine in ["a==1.0.0", "a-b_c.d[x,y]==1.0rc1+cpu", "a==1!2.0", "a==1; python_version >= '3.11'"] {
            assert_eq!(of(&runtime(Framework::Custom, &[fine], &[])).expect(fine), [fine]);
        }
        for odd in ["a", "-r==x", "a>=1", "a==", "==1", "a==1 --index-url x", "a @ https://h/x", "a==*", "a[==1", ""] {
            assert_eq!(
                of(&runtime(Framework::Custom, &[odd], &[])).expect_err(odd).category,
                FailureCategory::Dependencies
            );
        }
    }
}
