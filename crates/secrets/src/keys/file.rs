//! A private key in a file that only its owner reads.

use std::{
    fmt,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    encoding::{AsDer as _, Pkcs8V1Der},
    rsa::{KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, PrivateDecryptingKey},
};
use fs_err as fs;
use zeroize::Zeroizing;

use super::{Decrypt, KeyError, PublicKey, pem};
use crate::envelope::KeyId;

/// The longest key file that is read: RSA of 8192 bits has 6,400 characters.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// A private key in a file: PKCS#8 in PEM.
pub struct File {
    path: PathBuf,
    public: PublicKey,
    key: OaepPrivateDecryptingKey,
}

impl File {
    /// Reads the key.
    ///
    /// # Errors
    /// It is not there, open to others, behind a passphrase, or no RSA key; with the remedy.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let wrong = |reason: String| KeyError::refused(path.display().to_string(), reason);
        let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
        // Of what was opened, not of what the name leads to now.
        let about = file.metadata().map_err(|error| wrong(error.to_string()))?;
        if !about.is_file() || about.len() > MAX_KEY_FILE_BYTES {
            return Err(wrong("it is no file of a key".to_owned()));
        }
        let mut text = Zeroizing::new(String::with_capacity(usize::try_from(about.len()).unwrap_or_default() + 1));
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_KEY_FILE_BYTES), &mut text)
            .map_err(|error| wrong(error.to_string()))?;
        // Before its mode, which a public key may have.
        if let Some((label @ ("PUBLIC KEY" | "RSA PUBLIC KEY"), _)) = pem::read(&text) {
            return Err(wrong(format!("it holds a {label}: give the private key")));
        }
        if about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o777;
            return Err(wrong(format!("others may read or write it (mode {mode:04o}): chmod 600 {}", path.display())));
        }
        let (owner, us) = (about.uid(), rustix::process::geteuid().as_raw());
        if owner != us {
            let reason = format!("it belongs to user {owner} and we are {us}: chown it, or run as its owner");
            return Err(wrong(reason));
        }
        let content = match pem::read(&text) {
            Some(("PRIVATE KEY", content)) => content,
            Some(("ENCRYPTED PRIVATE KEY", _)) => {
                let reason = "it is behind a passphrase, which nobody could type at a server's start: keep the key in an HSM \
                              (pkcs11:…) or a KMS (exec:…), or take the passphrase off with openssl pkcs8";
                return Err(wrong(reason.to_owned()));
            }
            Some(("RSA PRIVATE KEY", _)) => {
                let reason = "it is in the PKCS#1 form: convert it with openssl pkcs8 -topk8 -nocrypt";
                return Err(wrong(reason.to_owned()));
            }
            Some((label, _)) => return Err(wrong(format!("it holds a {label}, not a PRIVATE KEY"))),
            None => return Err(wrong("it is no PEM file: it needs BEGIN PRIVATE KEY and END lines".to_owned())),
        };
        let key = PrivateDecryptingKey::from_pkcs8(&content).map_err(|_| wrong("it is no RSA key".to_owned()))?;
        let public = PublicKey::of(key.public_key()).map_err(wrong)?;
        let key = OaepPrivateDecryptingKey::new(key).map_err(|_| wrong("it is no sound RSA key".to_owned()))?;
        Ok(Self { path: path.to_owned(), public, key })
    }
}

impl Decrypt for File {
    fn id(&self) -> Option<&KeyId> {
        Some(self.public.id())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn public(&self) -> Option<PublicKey> {
        Some(self.public.clone())
    }

    fn unwrap(&self, _: &KeyId, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let mut buffer = Zeroizing::new(vec![0; self.key.min_output_size()]);
        let opened = self.key.decrypt(&OAEP_SHA256_MGF1SHA256, wrapped, &mut buffer, None);
        let length = opened
            .map_err(|_| KeyError::refused(self.name(), "a data key is not wrapped for it, or was changed"))?
            .len();
        buffer.truncate(length);
        Ok(buffer)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("public", &self.public).finish_non_exhaustive()
    }
}

/// Makes a pair of keys, RSA of 4096 bits: `private` for its owner's eyes only, `public` for everybody who may add secrets.
/// Takes up to a second.
///
/// # Errors
/// One of the files is there already, or cannot be written.
pub fn generate(private: &Path, public: &Path) -> Result<PublicKey, KeyError> {
    let wrong = |path: &Path, reason: String| KeyError::refused(path.display().to_string(), reason);
    for path in [private, public] {
        if path.exists() {
            let reason = "it is there already, and is not overwritten: what was encrypted for it would be lost with it";
            return Err(wrong(path, reason.to_owned()));
        }
    }
    let key = PrivateDecryptingKey::generate(KeySize::Rsa4096)
        .map_err(|_| wrong(private, "the cryptographic library could not make a key".to_owned()))?;
    let half = PublicKey::of(key.public_key()).map_err(|reason| wrong(public, reason))?;
    let der: Pkcs8V1Der<'_> = key.as_der().map_err(|_| wrong(private, "the key cannot be written down".to_owned()))?;
    let write = |path: &Path, mode: u32, text: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        let file = options.open(path).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        file.map_err(|error| wrong(path, error.to_string()))
    };
    write(private, 0o600, &pem::write("PRIVATE KEY", der.as_ref()))?;
    write(public, 0o644, &half.to_pem())?;
    Ok(half)
}
