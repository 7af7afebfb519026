//! The Python wheel: `pip install berth-….whl` puts the binary into the environment's `bin`, the engine into its `lib/berth`, and
//! `uv`, which makes the environments of models, beside it. Form: the binary distribution format of the Python packaging
//! specifications.

use std::{
    io::{Cursor, Write as _},
    path::PathBuf,
};

use anyhow::Result;
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

use super::{Packing, Release, elf, stage::Stage};
use crate::workspace::Workspace;

pub(super) fn make(workspace: &Workspace, release: &Release, stage: &Stage) -> Result<PathBuf> {
    let Release { version, machine, out, .. } = release;
    let glibc = elf::glibc(&[&stage.binary, &stage.engine])?;
    let tag = format!("py3-none-manylinux_2_{glibc}_{machine}");
    let (info, data) = (format!("berth-{version}.dist-info"), format!("berth-{version}.data"));
    let mut wheel =
        Wheel { zip: ZipWriter::new(Cursor::new(Vec::new())), record: String::new(), packing: release.packing };
    for item in &stage.items {
        let path = match item.path.strip_prefix("bin/") {
            Some(program) => format!("{data}/scripts/{program}"),
            None => format!("{data}/data/{}", item.path),
        };
        wheel.add(&path, &item.bytes, item.executable)?;
    }
    let readme = fs_err::read_to_string(workspace.path("README.md"))?;
    let metadata = format!(
        "Metadata-Version: 2.4\nName: berth\nVersion: {version}\nSummary: Serve many machine-learning models from \
         declarations\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.9\nRequires-Dist: {}\n\
         Description-Content-Type: text/markdown\n\n{readme}",
        crate::python::UV
    );
    wheel.add(&format!("{info}/METADATA"), metadata.as_bytes(), false)?;
    let about = format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n");
    wheel.add(&format!("{info}/WHEEL"), about.as_bytes(), false)?;
    wheel.add(&format!("{info}/licenses/LICENSE"), &fs_err::read(workspace.path("LICENSE"))?, false)?;
    let file = out.join(format!("berth-{version}-{tag}.whl"));
    fs_err::write(&file, wheel.finish(&info)?)?;
    Ok(file)
}

/// A wheel that is being written.
struct Wheel {
    zip: ZipWriter<Cursor<Vec<u8>>>,
    /// The list of files with their digests.
    record: String,
    packing: Packing,
}

impl Wheel {
    fn add(&mut self, path: &str, bytes: &[u8], executable: bool) -> Result<()> {
        self.put(path, bytes, executable)?;
        self.record.push_str(&format!("{path},sha256={},{}\n", digest(bytes), bytes.len()));
        Ok(())
    }

    fn put(&mut self, path: &str, bytes: &[u8], executable: bool) -> Result<()> {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(self.packing.level().into()))
            .last_modified_time(DateTime::default())
            .unix_permissions(if executable { 0o755 } else { 0o644 });
        self.zip.start_file(path, options)?;
        self.zip.write_all(bytes)?;
        Ok(())
    }

    fn finish(mut self, info: &str) -> Result<Vec<u8>> {
        let path = format!("{info}/RECORD");
        let record = format!("{}{path},,\n", self.record);
        self.put(&path, record.as_bytes(), false)?;
        Ok(self.zip.finish()?.into_inner())
    }
}

/// The digest as RECORD has it: URL-safe base64 without padding.
fn digest(bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use sha2::{Digest as _, Sha256};
    URL_SAFE_NO_PAD.encode(Sha256::digest(bytes))
}
