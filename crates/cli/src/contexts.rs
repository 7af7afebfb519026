//! Contexts: servers that this user has logged in to, in one file of the user's own.
//!
//! ```text
//! flag ─▶ variable ─▶ context ─▶ default          the first that says something wins       (layers)
//!                        └── the one that --context or BERTH_CONTEXT names; else the current one, unless an address is given
//! ```
//! A token is in a file of its own beside the file of contexts, so that nobody shares it by showing the other. A context is left
//! out where another address is given: its token must not go to a server that it is not for. One that `--context` names outranks the
//! addresses of variables.

use std::{
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use berth_spec::Secret;
use serde::{Deserialize, Serialize};

use crate::{failure::Failure, oidc::Login};

/// The variable that names the file of contexts.
const FILE: &str = "BERTH_CLIENT_CONFIG";

/// Its place below the folder of the user's settings.
const PLACE: &str = "berth/config.yaml";

/// All contexts of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// Name of the context that is used where no other is named; `None`: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) contexts: Vec<Context>,
}

/// One server, and who its user is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Context {
    pub(crate) name: String,
    /// Addresses of the control API, as `--api` takes them.
    pub(crate) api: String,
    /// Address of the gateway, for `BERTH_HTTP`; `None`: the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
}

impl Context {
    /// Its value for a variable of the environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        match name {
            "BERTH_API" => Some(self.api.clone()),
            "BERTH_HTTP" => self.http.clone(),
            "BERTH_CA" => text(&self.ca),
            "BERTH_CLIENT_CERT" => text(&self.client_cert),
            "BERTH_CLIENT_KEY" => text(&self.client_key),
            "BERTH_TOKEN_FILE" => text(&self.token_file),
            "BERTH_NAMESPACE" => self.namespace.clone(),
            _ => None,
        }
    }
}

/// The context that gives what flags and variables leave open: the named one, else the current one unless an address was given.
///
/// # Errors
/// The named one does not exist, or the file cannot be read.
pub(crate) fn in_force(named: Option<&str>, addressed: bool) -> Result<Option<Context>, Failure> {
    match named {
        Some(name) => Contexts::read()?.get(name).cloned().map(Some),
        None if addressed => Ok(None),
        None => {
            let all = Contexts::read()?;
            all.current.as_deref().map(|name| all.get(name).cloned()).transpose()
        }
    }
}

impl Contexts {
    /// The file of contexts.
    fn path() -> Result<PathBuf, Failure> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(file) = variable(FILE) {
            return Ok(file);
        }
        let folder = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        folder.map(|folder| folder.join(PLACE)).ok_or_else(|| {
            Failure::Usage(format!("there is no place for contexts: set HOME, or name a file with {FILE}"))
        })
    }

    /// Reads the file; without one there are no contexts.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub(crate) fn read() -> Result<Self, Failure> {
        let Ok(path) = Self::path() else { return Ok(Self::default()) };
        let text = match fs_err::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.into()),
        };
        serde_saphyr::from_str::<Option<Self>>(&text)
            .map(Option::unwrap_or_default)
            .map_err(|error| Failure::Invalid(format!("{}: {error}", path.display())))
    }

    /// The context of a name. The error lists those that there are.
    pub(crate) fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.iter().find(|context| context.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.iter().map(|context| context.name.as_str()).collect();
            let known =
                if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) };
            Failure::NotFound(format!("there is no context {name:?}: {known}; `berth login` makes one"))
        })
    }

    /// Puts a context in the place of its namesake, or behind the others. Its token goes into a file that only its owner reads, and
    /// the login that renews it into another.
    pub(crate) fn keep(
        &mut self,
        mut context: Context,
        token: Option<&Secret>,
        login: Option<&Login>,
    ) -> Result<(), Failure> {
        self.forget_token(&context.name)?;
        if let Some(login) = login {
            login.write(&Self::login_file(&context.name)?)?;
        }
        if let Some(token) = token {
            let file = Self::token_file(&context.name)?;
            write(&file, &format!("{}\n", token.expose().trim()))?;
            context.token_file = Some(file);
        }
        match self.contexts.iter_mut().find(|known| known.name == context.name) {
            Some(known) => *known = context,
            None => self.contexts.push(context),
        }
        Ok(())
    }

    /// Takes a context out, its token, too.
    pub(crate) fn delete(&mut self, name: &str) -> Result<(), Failure> {
        self.get(name)?;
        self.forget_token(name)?;
        self.contexts.retain(|context| context.name != name);
        self.current.take_if(|current| current == name);
        Ok(())
    }

    /// Renames a context with its token and login; the current one stays current. A name that is taken is a conflict.
    pub(crate) fn rename(&mut self, name: &str, new: &str) -> Result<(), Failure> {
        valid(new)?;
        if self.contexts.iter().any(|context| context.name == new) {
            return Err(Failure::Conflict(format!("there is a context {new:?} already: delete it first")));
        }
        let mut context = self.get(name)?.clone();
        let token = context.token_file.take().filter(|file| Self::token_file(name).is_ok_and(|own| own == *file));
        let token = token.map(|file| fs_err::read_to_string(file).map(Secret::new)).transpose()?;
        let was_current = self.current.as_deref() == Some(name);
        let login = Login::read(&Self::login_file(name)?)?;
        self.delete(name)?;
        context.name = new.to_owned();
        self.keep(context, token.as_ref(), login.as_ref())?;
        if was_current {
            self.current = Some(new.to_owned());
        }
        Ok(())
    }

    /// Writes the file.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let text = serde_saphyr::to_string(self).map_err(|error| Failure::doing("cannot write YAML", error))?;
        write(&Self::path()?, &text)
    }

    fn token_file(name: &str) -> Result<PathBuf, Failure> {
        Ok(Self::path()?.with_file_name("tokens").join(name))
    }

    /// The file of a login. No context has a name that begins so.
    fn login_file(name: &str) -> Result<PathBuf, Failure> {
        Ok(Self::path()?.with_file_name("tokens").join(format!(".{name}.login")))
    }

    fn forget_token(&self, name: &str) -> Result<(), Failure> {
        let login = Self::login_file(name)?;
        let lock = lock_of(&login);
        for file in [Self::token_file(name)?, login, lock] {
            match fs_err::remove_file(file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Renews the token of a context that was logged in at an issuer, if it is about to end.
///
/// # Errors
/// The login has ended, or the issuer cannot be reached.
pub(crate) async fn renew(context: &Context) -> Result<(), Failure> {
    let Some(token) = &context.token_file else { return Ok(()) };
    if *token != Contexts::token_file(&context.name)? {
        return Ok(());
    }
    Login::renew(&Contexts::login_file(&context.name)?, token).await
}

fn lock_of(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    file.with_file_name(name)
}

/// Waits until no other process of this user changes a file; until the answer is dropped.
pub(crate) fn lock(file: &Path) -> Result<std::fs::File, Failure> {
    let path = lock_of(file);
    let lock = std::fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
    lock.lock().map_err(|error| Failure::doing(format!("{} cannot be locked", path.display()), error))?;
    Ok(lock)
}

/// Checks the name of a context, which is also the name of a file.
pub(crate) fn valid(name: &str) -> Result<(), Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !name.is_empty() && name.len() <= 63 && name.chars().all(plain) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "{name:?} is no name for a context: letters, digits, '-', '_' and '.', up to 63"
        ))),
    }
}

/// Writes a file that its owner alone can read, whole or not at all.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // No context has a name that begins so.
    let new = path.with_file_name(format!(".{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    match fs_err::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(fs_err::rename(&new, path)?)
}
