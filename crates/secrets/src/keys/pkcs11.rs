//! A private key in an HSM, through its PKCS#11 module: it decrypts there and never leaves.
//!
//! A module may hang for as long as its HSM does, and cannot be interrupted. Each has a thread of its own, which is waited
//! for only so long.

use std::{
    collections::BTreeMap,
    fmt,
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
    mechanism::{
        Mechanism, MechanismType,
        rsa::{PkcsMgfType, PkcsOaepParams, PkcsOaepSource},
    },
    object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle},
    session::{Session, UserType},
    slot::Slot,
    types::AuthPin,
};
use zeroize::Zeroizing;

use super::{
    Decrypt, KeyEnvironment, KeyError, Pkcs11Uri, PublicKey,
    blocking_thread::{BlockingThread, NoReply},
    oaep,
};
use crate::envelope::KeyId;

/// Limit for one call of the module. Allows for an HSM behind a network that pauses.
const PATIENCE: Duration = Duration::from_secs(20);

/// The modules that this process uses, each on its thread: PKCS#11 may be initialised once.
static MODULES: Mutex<Vec<(PathBuf, Arc<BlockingThread<Module>>)>> = Mutex::new(Vec::new());

/// The next key's number.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A private key in an HSM.
pub struct Hsm {
    access: Arc<Access>,
    module: Arc<BlockingThread<Module>>,
    public: PublicKey,
}

/// Open session with a token.
struct Access {
    /// Tells the sessions of keys apart.
    number: u64,
    uri: Pkcs11Uri,
    pin: Option<Zeroizing<String>>,
}

/// A module, on its thread.
struct Module {
    path: PathBuf,
    /// Once it is loaded and initialised.
    loaded: Option<Pkcs11>,
    /// Of each key that is open, by its number. A new one is opened after a failure.
    sessions: BTreeMap<u64, (Session, ObjectHandle)>,
}

impl Hsm {
    /// Loads the module, logs in and finds the key.
    ///
    /// # Errors
    /// The module, the token, the key or the PIN is not there or not the right one, or the module hangs.
    pub fn open(uri: &Pkcs11Uri, around: &KeyEnvironment) -> Result<Self, KeyError> {
        let pin = pin(uri, around)?;
        let module = module(&uri.module_path)
            .ok_or_else(|| KeyError::absent(uri.name(), "no thread can be had for its module"))?;
        let access = Arc::new(Access { number: NEXT.fetch_add(1, Ordering::Relaxed), uri: uri.clone(), pin });
        let asked = Arc::clone(&access);
        match module.ask(move |module| module.open(&asked)) {
            Ok(public) => Ok(Self { public: public?, access, module }),
            Err(silent) => {
                // It may yet be opened.
                let number = access.number;
                module.tell(move |module| module.close(number));
                Err(access.hangs(silent))
            }
        }
    }

    fn decrypt(&self, wrapped: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, KeyError> {
        let (access, wrapped) = (Arc::clone(&self.access), wrapped.to_vec());
        let answer = self.module.ask(move |module| module.decrypt(&access, &wrapped));
        answer.map_err(|silent| self.access.hangs(silent))?
    }
}

impl Drop for Hsm {
    fn drop(&mut self) {
        let number = self.access.number;
        self.module.tell(move |module| module.close(number));
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
    /// Loads the module, logs in and finds the key. Gives its public half.
    fn open(&mut self, access: &Access) -> Result<PublicKey, KeyError> {
        let uri = &access.uri;
        let (session, key) = self.log_in(access)?;
        let parts = session
            .get_attributes(key, &[AttributeType::Modulus, AttributeType::PublicExponent])
            .map_err(|error| absent(uri, &error))?;
        let (mut modulus, mut exponent) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                Attribute::Modulus(bytes) => modulus = bytes,
                Attribute::PublicExponent(bytes) => exponent = bytes,
                _ => {}
            }
        }
        let public =
            PublicKey::from_parts(&modulus, &exponent).map_err(|reason| KeyError::refused(uri.name(), reason))?;
        self.sessions.insert(access.number, (session, key));
        Ok(public)
    }

    fn decrypt(&mut self, access: &Access, wrapped: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, KeyError> {
        let (session, key) = match self.sessions.remove(&access.number) {
            Some(session) => session,
            None => self.log_in(access)?,
        };
        let answer = ask(&session, key, wrapped);
        if let Ok(answer) = answer {
            self.sessions.insert(access.number, (session, key));
            return Ok(answer);
        }
        // The session may have ended: the token was taken out, or the HSM started anew. Once more with a new one.
        drop(session);
        let (session, key) = self.log_in(access)?;
        let answer = ask(&session, key, wrapped).map_err(|error| absent(&access.uri, &error))?;
        self.sessions.insert(access.number, (session, key));
        Ok(answer)
    }

    fn close(&mut self, number: u64) {
        self.sessions.remove(&number);
    }

    fn log_in(&mut self, access: &Access) -> Result<(Session, ObjectHandle), KeyError> {
        let module = self.loaded().map_err(|error| absent(&access.uri, &error))?;
        log_in(module, &access.uri, access.pin.as_ref())
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

/// Has the token decrypt; `None` if the bytes are not wrapped for this key.
fn ask(session: &Session, key: ObjectHandle, wrapped: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let params = PkcsOaepParams::new(MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, PkcsOaepSource::empty());
    let answer = match session.decrypt(&Mechanism::RsaPkcsOaep(params), key, wrapped) {
        // Many tokens know OAEP with SHA-1 alone, SoftHSM among them: they do the power, the padding is taken off here.
        Err(Error::Pkcs11(
            RvError::ArgumentsBad
            | RvError::MechanismInvalid
            | RvError::MechanismParamInvalid
            | RvError::FunctionNotSupported,
            _,
        )) => session.decrypt(&Mechanism::RsaX509, key, wrapped).map(Zeroizing::new).map(|block| oaep::unpad(&block)),
        other => other.map(Zeroizing::new).map(Some),
    };
    match answer {
        Err(Error::Pkcs11(
            RvError::EncryptedDataInvalid
            | RvError::EncryptedDataLenRange
            | RvError::DataInvalid
            | RvError::DataLenRange,
            _,
        )) => Ok(None),
        other => other,
    }
}

impl Decrypt for Hsm {
    fn id(&self) -> Option<&KeyId> {
        Some(self.public.id())
    }

    fn name(&self) -> String {
        self.access.uri.name()
    }

    fn public(&self) -> Option<PublicKey> {
        Some(self.public.clone())
    }

    fn unwrap(&self, _: &KeyId, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let wrong = || KeyError::refused(self.name(), "a data key is not wrapped for it, or was changed");
        self.decrypt(wrapped)?.ok_or_else(wrong)
    }
}

impl fmt::Debug for Hsm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hsm")
            .field("key", &self.access.uri.name())
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

fn absent(uri: &Pkcs11Uri, error: &Error) -> KeyError {
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

fn log_in(
    module: &Pkcs11,
    uri: &Pkcs11Uri,
    pin: Option<&Zeroizing<String>>,
) -> Result<(Session, ObjectHandle), KeyError> {
    let slot = slot(module, uri)?;
    let session = module.open_ro_session(slot).map_err(|error| absent(uri, &error))?;
    if let Some(pin) = pin {
        match session.login(UserType::User, Some(&AuthPin::new(pin.as_str().into()))) {
            // Another session of ours to the same token has.
            Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => {}
            Err(error) => return Err(absent(uri, &error)),
        }
    }
    let mut wanted = vec![Attribute::Class(ObjectClass::PRIVATE_KEY), Attribute::KeyType(KeyType::RSA)];
    wanted.extend(uri.object.as_ref().map(|label| Attribute::Label(label.clone().into_bytes())));
    wanted.extend(uri.id.as_ref().map(|id| Attribute::Id(id.clone())));
    let found = session.find_objects(&wanted).map_err(|error| absent(uri, &error))?;
    match found.as_slice() {
        [key] => Ok((session, *key)),
        [] => {
            let reason =
                "the token has no such private RSA key; without a PIN private keys are not seen: give pin-source";
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
            let error = Hsm::open(&uri, &KeyEnvironment::default()).expect_err("it hangs");
            assert!(error.silent && error.transient, "{error:?}");
            for says in ["object=o", "/nowhere/hangs.so has not answered for", "start this process anew"] {
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}
