//! The Python package `berth`, which is part of this program: written to the data folder, where models find it.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};

/// Its files, from `python/berth` of the repository.
const FILES: [(&str, &str); 19] = [
    ("__init__.py", include_str!("../../../../../python/berth/src/berth/__init__.py")),
    ("adapt.py", include_str!("../../../../../python/berth/src/berth/adapt.py")),
    ("boosters.py", include_str!("../../../../../python/berth/src/berth/boosters.py")),
    ("documents.py", include_str!("../../../../../python/berth/src/berth/documents.py")),
    ("encoding.py", include_str!("../../../../../python/berth/src/berth/encoding.py")),
    ("errors.py", include_str!("../../../../../python/berth/src/berth/errors.py")),
    ("estimators.py", include_str!("../../../../../python/berth/src/berth/estimators.py")),
    ("forests.py", include_str!("../../../../../python/berth/src/berth/forests.py")),
    ("frames.py", include_str!("../../../../../python/berth/src/berth/frames.py")),
    ("functions.py", include_str!("../../../../../python/berth/src/berth/functions.py")),
    ("host.py", include_str!("../../../../../python/berth/src/berth/host.py")),
    ("isolation.py", include_str!("../../../../../python/berth/src/berth/isolation.py")),
    ("loaders.py", include_str!("../../../../../python/berth/src/berth/loaders.py")),
    ("logs.py", include_str!("../../../../../python/berth/src/berth/logs.py")),
    ("marks.py", include_str!("../../../../../python/berth/src/berth/marks.py")),
    ("networks.py", include_str!("../../../../../python/berth/src/berth/networks.py")),
    ("pipeline.py", include_str!("../../../../../python/berth/src/berth/pipeline.py")),
    ("rows.py", include_str!("../../../../../python/berth/src/berth/rows.py")),
    ("testing.py", include_str!("../../../../../python/berth/src/berth/testing.py")),
];

/// Puts the package below `folder`, unless it is there already, and gives the folder for Python's path.
pub(super) fn unpack(folder: &Path) -> io::Result<PathBuf> {
    let home = folder.join(format!("package-{}", version()));
    if home.exists() {
        return Ok(home);
    }
    fs_err::create_dir_all(folder)?;
    // Made aside and renamed: another worker over the same folder, or one that is killed meanwhile, sees all or nothing.
    // The number is random: two workers in containers may have the same process number.
    let aside = folder.join(format!("package-{}.{:016x}", version(), RandomState::new().hash_one(0)));
    let package = aside.join("berth");
    fs_err::create_dir_all(&package)?;
    for (name, text) in FILES {
        fs_err::write(package.join(name), text)?;
    }
    fs_err::write(package.join("py.typed"), "")?;
    match fs_err::rename(&aside, &home) {
        Err(_) if home.exists() => fs_err::remove_dir_all(&aside)?,
        renamed => renamed?,
    }
    Ok(home)
}

/// The beginning of the hash of all files.
fn version() -> String {
    let mut hash = Context::new(&SHA256);
    for (name, text) in FILES {
        hash.update(name.as_bytes());
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.finish().as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_package_is_embedded() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/berth/src/berth");
        let mut there: Vec<String> = fs_err::read_dir(source)
            .expect("the package")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".py"))
            .collect();
        there.sort();
        assert_eq!(there, FILES.map(|(name, _)| name.to_owned()));
    }

    #[test]
    fn it_is_unpacked_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = unpack(folder.path()).expect("unpacked");
        assert!(home.join("berth/host.py").exists());
        fs_err::write(home.join("mine"), "").expect("written");
        assert_eq!(unpack(folder.path()).expect("found"), home);
        assert!(home.join("mine").exists());
    }
}
