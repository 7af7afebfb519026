//! ZIP files that are the same bytes for the same files: sorted, without times and owners.

use std::{io, path::Path};

use fs_err::File;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::{BuildError, sandbox::fresh, tree::Tree};

/// Writes the files below `root` to `to`.
pub(super) fn write(root: &Path, to: &Path) -> Result<(), BuildError> {
    let mut writer = ZipWriter::new(io::BufWriter::new(fresh(to)?));
    // The default time is the first that the format can say.
    let plain = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(6))
        .last_modified_time(zip::DateTime::default());
    let broken =
        |error: zip::result::ZipError| BuildError::passing("DiskError", format!("cannot write the artifact: {error}"));
    for file in Tree::list(root)? {
        let mode = if file.runs { 0o755 } else { 0o644 };
        writer.start_file(file.path.as_str(), plain.unix_permissions(mode)).map_err(broken)?;
        io::copy(&mut File::open(root.join(&file.path))?, &mut writer)?;
    }
    let mut file = writer.finish().map_err(broken)?;
    io::Write::flush(&mut file)?;
    Ok(())
}
