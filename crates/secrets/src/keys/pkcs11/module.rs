//! The thread of a PKCS#11 module, and the sessions of keys there.
//!
//! ```text
//! closed ──log in, find the key──▶ open ──a call fails──▶ closed, once more at once
//! ```

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cryptoki::{
    context::{CInitializeArgs, CInitializeFlags, Pkcs11},
    error::{Error, RvError},
    object::{Attribute, KeyType, ObjectClass, ObjectHandle},
    session::{Session, UserType},
    slot::Slot,
    types::AuthPin,
};
use zeroize::Zeroizing;

use crate::keys::{
    KeyEnvironment, KeyError, Pkcs11Uri,
    blocking_thread::{BlockingThread, NoReply},
};

/// Limit for one call of the module. Allows for an HSM behind a network that pauses.
const PATIENCE: Duration = Duration::from_secs(20);

/// The modules that this process uses, each on its thread: PKCS#11 may be initialised once.
static MODULES: Mutex<Vec<(PathBuf, Arc<BlockingThread<Module>>)>> = Mutex::new(Vec::new());

/// The next key's number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A key in a token, for whoever asks it.
pub(super) struct KeyHandle {
    pub(super) access: Arc<Access>,
    module: Arc<BlockingThread<Module>>,
}

/// All that a session with a key needs: which key, and the PIN.
pub(super) struct Access {
    /// Tells the sessions of keys apart.
    number: u64,
    pub(super) uri: Pkcs11Uri,
    /// RSA or EC.
    kind: KeyType,
    pin: Option<Zeroizing<String>>,
}

/// A PKCS#11 module on its thread, with a session for each key that is in use.
struct Module {
    path: PathBuf,
    /// Once it is loaded and initialised.
    loaded: Option<Pkcs11>,
    /// Of each key that is open, by its number. A new one is opened after a failure.
    sessions: BTreeMap<u64, (Session, ObjectHandle)>,
}

impl KeyHandle {
    /// Loads the module, logs in, finds the key, and reads from it what `read` wants.
    ///
    /// # Errors
    /// The module, the token, the key or the PIN is not there or not the right one, or the module hangs.
    pub(super) fn open<T: Send + 'static>(
        uri: &Pkcs11Uri,
        kind: KeyType,
        around: &KeyEnvironment,
        read: impl FnOnce(&Access, &Session, ObjectHandle) -> Result<T, KeyError> + Send + 'static,
    ) -> Result<(Self, T), KeyError> {
        let pin = pin(uri, around)?;
        let module = module(&uri.module_path)
            .ok_or_else(|| KeyError::absent(uri.name(), "no thread can be had for its module"))?;
        let access = Arc::new(Access { number: NEXT.fetch_add(1, Ordering::Relaxed), uri: uri.clone(), kind, pin });
        let asked = Arc::clone(&access);
        match module.ask(move |module| module.open(&asked, read)) {
            Ok(told) => Ok((Self { access, module }, told?)),
            Err(silent) => {
                // It may yet be opened.
                let number = access.number;
                module.tell(move |module| module.close(number));
                Err(access.hangs(silent))
            }
        }
    }

    /// Has the key do something. It is tried again with a new session: the old one may have ended.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl Fn(&Session, ObjectHandle) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, KeyError> {
        let access = Arc::clone(&self.access);
        let answer = self.module.ask(move |module| module.work(&access, work));
        answer.map_err(|silent| self.access.hangs(silent))?
    }
}

impl Drop for KeyHandle {
    fn drop(&mut self) {
        let number = self.access.number;
        // Waited for: a process that ends while a module works may crash in it.
        let _ = self.module.ask(move |module| module.close(number));
    }
}

impl Access {
    /// Error for a module that hangs and may never return.
    fn hangs(&self, silent: NoReply) -> KeyError {
        let reason = format!(
            "its module {} has not answered for {} s: see whether the HSM and its service can be reached; it is asked again \
             once it has come back, and if it never does, start this process anew",
            self.uri.module_path.display(),
            silent.busy.as_secs()
        );
        KeyError::silent(self.uri.name(), reason)
    }
}

impl Module {
    fn open<T>(
        &mut self,
        access: &Access,
        read: impl FnOnce(&Access, &Session, ObjectHandle) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        let (session, key) = self.log_in(access)?;
        let told = read(access, &session, key)?;
        self.sessions.insert(access.number, (session, key));
        Ok(told)
    }

    fn work<T>(
        &mut self,
        access: &Access,
        work: impl Fn(&Session, ObjectHandle) -> Result<T, Error>,
    ) -> Result<T, KeyError> {
        let (session, key) = match self.sessions.remove(&access.number) {
            Some(session) => session,
            None => self.log_in(access)?,
        };
        let answer = work(&session, key);
        if let Ok(answer) = answer {
            self.sessions.insert(access.number, (session, key));
            return Ok(answer);
        }
        // The session may have ended: the token was taken out, or the HSM started anew. Once more with a new one.
        drop(session);
        let (session, key) = self.log_in(access)?;
        let answer = work(&session, key).map_err(|error| absent(&access.uri, &error))?;
        self.sessions.insert(access.number, (session, key));
        Ok(answer)
    }

    fn close(&mut self, number: u64) {
        self.sessions.remove(&number);
    }

    fn log_in(&mut self, access: &Access) -> Result<(Session, ObjectHandle), KeyError> {
        let module = self.loaded().map_err(|error| absent(&access.uri, &error))?;
        log_in(module, access)
    }

    /// Loads and initialises it, once.
    fn loaded(&mut self) -> Result<&Pkcs11, Error> {
        let module = match self.loaded.take() {
            Some(module) => module,
            None => {
                let module = Pkcs11::new(&self.path)?;
                match module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
                    Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
                    Err(error) => return Err(error),
                }
                module
            }
        };
        Ok(self.loaded.insert(module))
    }
}

pub(super) fn absent(uri: &Pkcs11Uri, error: &Error) -> KeyError {
    let reason = match error {
        Error::LibraryLoading(error) => format!("its module cannot be loaded: {error}"),
        Error::Pkcs11(RvError::PinIncorrect, _) => {
            // Asking again would lock the token.
            return KeyError::refused(uri.name(), "the PIN is wrong: mend pin-source before the token locks itself");
        }
        Error::Pkcs11(RvError::PinLocked, _) => {
            return KeyError::refused(uri.name(), "the PIN is locked: unlock the token");
        }
        Error::Pkcs11(code, function) => format!("the HSM says {code:?} to {function:?}"),
        other => other.to_string(),
    };
    KeyError::absent(uri.name(), reason)
}

/// The thread of a module. `None`: none can be had.
fn module(path: &Path) -> Option<Arc<BlockingThread<Module>>> {
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, module)) = modules.iter().find(|(known, _)| known == path) {
        return Some(Arc::clone(module));
    }
    let of = path.to_owned();
    let make = move || Module { path: of, loaded: None, sessions: BTreeMap::new() };
    let module = Arc::new(BlockingThread::start("berth-hsm", PATIENCE, make)?);
    modules.push((path.to_owned(), Arc::clone(&module)));
    Some(module)
}

fn log_in(module: &Pkcs11, access: &Access) -> Result<(Session, ObjectHandle), KeyError> {
    let Access { uri, pin, kind, .. } = access;
    let slot = slot(module, uri)?;
    let session = module.open_ro_session(slot).map_err(|error| absent(uri, &error))?;
    if let Some(pin) = pin {
        match session.login(UserType::User, Some(&AuthPin::new(pin.as_str().into()))) {
            // Another session of ours to the same token has.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
            Err(error) => return Err(absent(uri, &error)),
        }
    }
    let mut wanted = vec![Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::KeyType(*kind)];
    wanted.extend(uri.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes())));
    wanted.extend(uri.id.as_ref().map(|id| Attribute::Id(id.clone())));
    let found = session.find_objects(&wanted).map_err(|error| absent(uri, &error))?;
    match found.as_slice() {
        [key] => Ok((session, *key)),
        [] => {
            let kind = if *kind == KeyType::RSA { "RSA" } else { "EC" };
            let reason = format!(
                "the token has no such private {kind} key; without a PIN private keys are not seen: give pin-source"
            );
            Err(KeyError::refused(uri.name(), reason))
        }
        several => {
            let reason = format!("the token has {} such keys: add id=%XX to tell them apart", several.len());
            Err(KeyError::refused(uri.name(), reason))
        }
    }
}

/// The one token that the URI names.
fn slot(module: &Pkcs11, uri: &Pkcs11Uri) -> Result<Slot, KeyError> {
    let slots = module.get_slots_with_initialized_token().map_err(|error| absent(uri, &error))?;
    let mut fitting = Vec::new();
    let mut labels = Vec::new();
    for slot in slots {
        let about = module.get_token_info(slot).map_err(|error| absent(uri, &error))?;
        let (label, serial) = (about.label().trim_end(), about.serial_number().trim_end());
        let fits = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|wanted| wanted.as_str() == is);
        if fits(&uri.token, label) && fits(&uri.serial, serial) {
            fitting.push(slot);
        }
        labels.push(label.to_owned());
    }
    match fitting.as_slice() {
        [slot] => Ok(*slot),
        [] => Err(KeyError::absent(uri.name(), format!("there is no such token; there are: {}", labels.join(", ")))),
        _ => Err(KeyError::refused(uri.name(), "several tokens fit: add token= or serial=")),
    }
}

fn pin(uri: &Pkcs11Uri, around: &KeyEnvironment) -> Result<Option<Zeroizing<String>>, KeyError> {
    let Some(source) = &uri.pin_source else { return Ok(None) };
    let wrong = |reason: String| KeyError::refused(uri.name(), reason);
    let pin = match source.strip_prefix("env:") {
        Some(name) => around.environment.get(name).cloned().ok_or_else(|| {
            wrong(format!(
                "its PIN should be in the variable {name}, which is not set, or not among those that keys may see"
            ))
        })?,
        None => {
            let path = source.strip_prefix("file://").or_else(|| source.strip_prefix("file:")).unwrap_or(source);
            fs_err::read_to_string(path).map_err(|error| wrong(format!("its PIN cannot be read: {error}")))?
        }
    };
    Ok(Some(Zeroizing::new(pin.trim_end_matches(['\n', '\r']).to_owned())))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_module_that_hangs_is_named_and_not_waited_for() {
        let path = Path::new("/nowhere/hangs.so");
        let make = move || Module { path: path.to_owned(), loaded: None, sessions: BTreeMap::new() };
        let module = Arc::new(BlockingThread::start("test", Duration::from_millis(20), make).expect("a thread"));
        let (_let_go, held) = mpsc::channel::<()>();
        // As long as the test runs.
        assert!(module.ask(move |_| held.recv().is_ok()).is_err());
        MODULES.lock().expect("no panic").push((path.to_owned(), module));
        let uri: Pkcs11Uri = "pkcs11:token=t;object=o?module-path=/nowhere/hangs.so".parse().expect("a URI");
        for _ in 0..3 {
            let error = KeyHandle::open(&uri, KeyType::RSA, &KeyEnvironment::default(), |_, _, _| Ok(()))
                .map(drop)
                .expect_err("it hangs");
            assert!(error.silent && error.transient, "{error:?}");
            for says in ["object=o", "/nowhere/hangs.so has not answered for", "start this process anew"] {
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}
