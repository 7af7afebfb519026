//! `berth secrets`: the encrypted files from which workers get their credentials. Cryptography and form are
//! [`berth_secrets`]'s; here files are read and written, and people are told.

mod edit;
mod encrypt;
mod rotate;
mod show;

use std::{
    fs::Permissions,
    io::{Read, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use berth_secrets::{
    Document, Keyring, OpenError, Problem, SealError,
    keys::{self, Decrypt, KeyEnvironment, KeyError, PublicKey},
};
use berth_spec::Class;
use clap::{Args, Subcommand, ValueHint};
use fs_err as fs;
use zeroize::Zeroizing;

use crate::{failure::Failure, files::plural, terminal};

/// The longest plain text that is read: larger than the largest file that it could become.
const MOST_READ: u64 = 8 << 20;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets keygen --out ./keys                    once: registry.key and registry.pub
  berth secrets encrypt --key keys/registry.pub --worker worker-a \\
    --file plain.yaml --out worker-a-secrets.yaml
  berth secrets encrypt --key keys/registry.pub --into worker-a-secrets.yaml \\
    --set s3_access.secret_access_key=@-
  berth secrets edit worker-a-secrets.yaml --private keys/registry.key
  berth secrets check workers/secrets/*.yaml           in CI; needs no private key
  berth secrets show workers/secrets/*.yaml            workers, types and ages, without values")]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    command: SecretsCommand,
}

#[derive(Debug, Subcommand)]
enum SecretsCommand {
    /// Create a key pair for secrets
    Keygen(KeygenArgs),
    /// Print the public half of a private key, for example of one in an HSM
    Public(PublicArgs),
    /// Encrypt secrets for a worker, or add secrets to its file; needs only the public key
    Encrypt(encrypt::EncryptArgs),
    /// Change an encrypted file in an editor
    Edit(edit::EditArgs),
    /// Re-encrypt files for other keys
    Rotate(rotate::RotateArgs),
    /// Check files of secrets for errors and for secrets in plain text
    Check(show::CheckArgs),
    /// Show the content of files of secrets without values
    Show(show::ShowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets keygen --out ./keys
  berth secrets keygen --out ./keys --name registry-2027   the next key pair, for rotation

Keep registry.key on the controllers only: it decrypts the secrets of all workers. Commit
registry.pub wherever people add secrets. An HSM or KMS can hold the pair instead;
`berth secrets public` prints its public half.")]
struct KeygenArgs {
    /// Folder for both files; created if missing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: PathBuf,
    /// Base name of the files: NAME.key and NAME.pub
    #[arg(long, default_value = "registry")]
    name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets public --private \\
    'pkcs11:token=berth;object=registry?module-path=/usr/lib/libsofthsm2.so&pin-source=/run/pin'
  berth secrets public --private ./keys/registry.key > registry.pub")]
struct PublicArgs {
    #[command(flatten)]
    private: PrivateArgs,
}

/// Private keys, and what their keepers may see.
#[derive(Debug, Clone, Args)]
pub(crate) struct PrivateArgs {
    /// Private key: a file, pkcs11:… or exec:/PROGRAM. Repeatable
    #[arg(long, value_name = "KEY", required = true, env = "BERTH_SECRETS_KEY", value_hint = ValueHint::AnyPath)]
    private: Vec<String>,
    /// Environment variables for exec: programs and pin-source=env:NAME
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pass_env: Vec<String>,
}

impl PrivateArgs {
    pub(crate) fn keyring(&self) -> Result<Keyring, Failure> {
        Ok(Keyring::new(self.open()?))
    }

    fn open(&self) -> Result<Vec<Box<dyn Decrypt>>, Failure> {
        let mut around = KeyEnvironment::default();
        for name in &self.pass_env {
            let value = std::env::var_os(name)
                .ok_or_else(|| Failure::Usage(format!("--pass-env: the variable {name} is not set")))?;
            let value = value
                .into_string()
                .map_err(|_| Failure::Usage(format!("--pass-env: the variable {name} is not UTF-8")))?;
            around.environment.insert(name.clone(), value);
        }
        self.private.iter().map(|key| keys::open(key, &around).map_err(Failure::from)).collect()
    }
}

/// For whom to encrypt.
#[derive(Debug, Clone, Args)]
pub(crate) struct RecipientArgs {
    /// Public key of a recipient. Repeatable: every recipient can decrypt
    #[arg(long = "key", value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    key: Vec<PathBuf>,
}

impl RecipientArgs {
    pub(crate) fn read(&self) -> Result<Vec<PublicKey>, Failure> {
        let mut read: Vec<PublicKey> = Vec::with_capacity(self.key.len());
        for path in &self.key {
            let key = PublicKey::read(path)?;
            if read.iter().any(|known| known.id() == key.id()) {
                return Err(Failure::Usage(format!("{}: the key {} is given twice", path.display(), key.id())));
            }
            read.push(key);
        }
        Ok(read)
    }
}

pub(crate) fn run(args: &SecretsArgs) -> Result<(), Failure> {
    match &args.command {
        SecretsCommand::Keygen(args) => keygen(args),
        SecretsCommand::Public(args) => public(args),
        SecretsCommand::Encrypt(args) => encrypt::run(args),
        SecretsCommand::Edit(args) => edit::run(args),
        SecretsCommand::Rotate(args) => rotate::run(args),
        SecretsCommand::Check(args) => show::check(args),
        SecretsCommand::Show(args) => show::show(args),
    }
}

fn keygen(args: &KeygenArgs) -> Result<(), Failure> {
    if args.name.is_empty() || args.name.contains('/') {
        return Err(Failure::Usage("--name is the name of two files, without a folder".to_owned()));
    }
    fs::create_dir_all(&args.out)?;
    let path = |ending: &str| args.out.join(format!("{}.{ending}", args.name));
    let (private, public) = (path("key"), path("pub"));
    let made = keys::generate(&private, &public)?;
    Ok(terminal::print(&format!(
        "made the key {}\n  {}  for the controllers alone: it opens the secrets of all workers\n  {}  for everybody who may add \
         secrets\n\nnext: berth secrets encrypt --key {} --worker WORKER\n",
        made.id(),
        private.display(),
        public.display(),
        public.display(),
    ))?)
}

fn public(args: &PublicArgs) -> Result<(), Failure> {
    let mut text = String::new();
    for key in args.private.open()? {
        let public = key.public().ok_or_else(|| {
            Failure::Invalid(format!("{} does not tell its public half: ask the KMS for it as PEM", key.name()))
        })?;
        text.push_str(&public.to_pem());
    }
    Ok(terminal::print(&text)?)
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error.class() {
            Class::Invalid => Self::Invalid(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<SealError> for Failure {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Open(error) => error.into(),
            SealError::Crypto => Self::Failed(error.to_string()),
            _ => Self::Invalid(error.to_string()),
        }
    }
}

/// All problems, one to a line.
fn wrong(problems: &[Problem]) -> Failure {
    let mut text: String = problems.iter().map(|problem| format!("error: {problem}\n")).collect();
    text.push_str(&plural(problems.len(), "error"));
    Failure::Invalid(text)
}

/// A file of secrets.
fn document(path: &Path) -> Result<Document, Failure> {
    Document::parse(&fs::read_to_string(path)?, &path.display().to_string()).map_err(|problems| wrong(&problems))
}

/// Standard input, or a file, that may hold secrets in the clear.
fn plain_text(path: Option<&Path>) -> Result<Zeroizing<String>, Failure> {
    let mut text = Zeroizing::new(String::new());
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => fs::File::open(path)?.take(MOST_READ).read_to_string(&mut text)?,
        None => std::io::stdin()
            .take(MOST_READ)
            .read_to_string(&mut text)
            .map_err(|error| Failure::doing("cannot read standard input", error))?,
    };
    if u64::try_from(text.len()).unwrap_or(u64::MAX) >= MOST_READ {
        return Err(Failure::Invalid(format!("there are more than {MOST_READ} bytes: these cannot be secrets")));
    }
    Ok(text)
}

/// Writes a file in one step: who reads it meanwhile sees the old one or the new one, also after a crash.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::doing(format!("cannot write {}", path.display()), error);
    // Of a link, what it leads to.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = fs::metadata(&path).map_or(0o644, |about| about.permissions().mode() & 0o777);
    let mut beside = tempfile::Builder::new()
        .prefix(".berth-secrets-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)
        .map_err(failed)?;
    beside.write_all(text.as_bytes()).and_then(|()| beside.as_file().sync_all()).map_err(failed)?;
    beside.persist(&path).map_err(|error| failed(error.error))?;
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// Warns that a rewritten file loses its comments.
fn warn_of_comments(path: &Path, document: &Document) {
    if document.other_comments > 0 {
        let _ = writeln!(
            std::io::stderr(),
            "warning: {}: {} below the top of the file will be lost",
            path.display(),
            plural(document.other_comments, "comment line")
        );
    }
}
