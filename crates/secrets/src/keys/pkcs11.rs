//! A private key in an HSM, through its PKCS#11 module: it decrypts there and never leaves.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
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

use super::{Decrypt, KeyError, Pkcs11Uri, PublicKey, Surroundings, oaep};
use crate::envelope::KeyId;

/// The modules that this process has loaded: PKCS#11 may be initialised once.
static LOADED: Mutex<Vec<(PathBuf, Pkcs11)>> = Mutex::new(Vec::new());

/// A private key in an HSM.
pub struct Hsm {
    uri: Pkcs11Uri,
    pin: Option<Zeroizing<String>>,
    module: Pkcs11,
    public: PublicKey,
    /// A session serves one caller at a time; a new one is opened after a failure.
    session: Mutex<Option<(Session, ObjectHandle)>>,
}

impl Hsm {
    /// Loads the module, logs in and finds the key.
    ///
    /// # Errors
    /// The module, the token, the key or the PIN is not there or not the right one.
    pub fn open(uri: &Pkcs11Uri, around: &Surroundings) -> Result<Self, KeyError> {
        let pin = pin(uri, around)?;
        let module = module(&uri.module_path).map_err(|error| absent(uri, &error))?;
        let (session, key) = log_in(&module, uri, pin.as_ref())?;
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
        Ok(Self { uri: uri.clone(), pin, module, public, session: Mutex::new(Some((session, key))) })
    }

    fn decrypt(&self, wrapped: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, KeyError> {
        let mut kept = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let (session, key) = match kept.take() {
            Some(session) => session,
            None => log_in(&self.module, &self.uri, self.pin.as_ref())?,
        };
        let answer = ask(&session, key, wrapped);
        if let Ok(answer) = answer {
            *kept = Some((session, key));
            return Ok(answer);
        }
        // The session may have ended: the token was taken out, or the HSM started anew. Once more with a new one.
        drop(session);
        let (session, key) = log_in(&self.module, &self.uri, self.pin.as_ref())?;
        let answer = ask(&session, key, wrapped).map_err(|error| absent(&self.uri, &error))?;
        *kept = Some((session, key));
        Ok(answer)
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
        self.uri.name()
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
        f.debug_struct("Hsm").field("key", &self.uri.name()).field("public", &self.public).finish_non_exhaustive()
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

/// The module, loaded and initialised once.
fn module(path: &Path) -> Result<Pkcs11, Error> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, module)) = loaded.iter().find(|(known, _)| known == path) {
        return Ok(module.clone());
    }
    let module = Pkcs11::new(path)?;
    match module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => {}
        Err(error) => return Err(error),
    }
    loaded.push((path.to_owned(), module.clone()));
    Ok(module)
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

fn pin(uri: &Pkcs11Uri, around: &Surroundings) -> Result<Option<Zeroizing<String>>, KeyError> {
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
