//! The Secret `storage-config`: a folder with a file per entry, or the manifest of the Secret.

use std::{collections::BTreeMap, io, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_spec::Secret;
use serde::Deserialize;

/// The most bytes of a Secret: Kubernetes has 1 MiB, and Base64 makes it a third longer.
const MAX_SECRET_BYTES: u64 = 2 << 20;

/// The longest name of an entry, as in Kubernetes.
const LONGEST_NAME: usize = 253;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    data: BTreeMap<String, String>,
    #[serde(default)]
    string_data: BTreeMap<String, String>,
}

/// The text of an entry; `None`: there is none of that name.
///
/// # Errors
/// For people: the Secret cannot be read. Nothing of what is in it.
pub(super) fn entry(config: &Path, name: &str) -> Result<Option<Secret>, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.chars().all(plain) {
        return Err("a storage has a name of letters, digits, '-', '_' and '.'".to_owned());
    }
    if config.is_dir() {
        return read(&config.join(name));
    }
    let shown = config.display();
    let Some(text) = read(config)? else { return Err(format!("{shown} is not there")) };
    // The reader's own words may quote a value.
    let manifest: Manifest = serde_saphyr::from_str(text.expose()).map_err(|_| {
        format!("{shown} is not the manifest of a Secret: give it as kubectl get secret -o yaml prints it")
    })?;
    if let Some(text) = manifest.string_data.get(name) {
        return Ok(Some(Secret::new(text.as_str())));
    }
    let Some(encoded) = manifest.data.get(name) else { return Ok(None) };
    let packed: String = encoded.split_whitespace().collect();
    let decoded = STANDARD.decode(packed).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.map(|text| Some(Secret::new(text.as_str()))).ok_or_else(|| format!("data.{name} of {shown} is not Base64"))
}

fn read(path: &Path) -> Result<Option<Secret>, String> {
    let shown = path.display();
    match fs_err::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(found) if !found.is_file() => return Err(format!("{shown} is not a file")),
        Ok(found) if found.len() > MAX_SECRET_BYTES => {
            return Err(format!("{shown} has more than {MAX_SECRET_BYTES} bytes"));
        }
        Ok(_) => {}
    }
    let text = fs_err::read_to_string(path).map_err(|error| error.to_string())?;
    Ok(Some(Secret::new(text.as_str())))
}
