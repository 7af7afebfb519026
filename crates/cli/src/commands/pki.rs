//! `berth pki`: the certificates by which the nodes of a cluster know each other. Making them is [`berth_peer::pki`]'s;
//! here is what a person is told.

mod certificate;
mod revoke;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_peer::{
    Identity, PkiError,
    pki::{Authority, CA, CA_KEY, DEFAULT_VALIDITY, GOSSIP_KEY, NODE, NODE_KEY, certifies},
};
use berth_secrets::keys::Pkcs11Uri;
use berth_spec::{Class, Roles, WorkerId};
use clap::{Args, Subcommand};
use fs_err as fs;
use serde_json::json;

use self::{
    certificate::Certificate,
    revoke::{ReinstateArgs, RevocationsArgs, RevokeArgs},
};
use super::output::{Form, print_value};
use crate::{ca_key, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki init ./pki                       once: the certificate authority and the gossip key
  berth pki issue ./pki node-a               for each node; then copy ./pki/node-a to it
  berth pki show ./pki                       names and expiry
  berth pki revoke gpu-1                     no node takes its certificates any more

You can use your own CA: `berth pki show` lists the files that a node's folder needs.")]
pub(crate) struct PkiArgs {
    #[command(subcommand)]
    command: PkiCommand,
}

#[derive(Debug, Subcommand)]
enum PkiCommand {
    /// Create a certificate authority for a cluster
    Init(InitArgs),
    /// Issue or renew the certificate of a node
    Issue(IssueArgs),
    /// Show the names and the expiry of certificates
    Show(ShowArgs),
    /// Revoke the certificates of a node, or one certificate
    Revoke(RevokeArgs),
    /// List revocations
    Revocations(RevocationsArgs),
    /// Take revocations back
    Reinstate(ReinstateArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki init ./pki && berth pki issue ./pki a
  berth pki init ./pki --ca-key \\
    'pkcs11:token=berth;object=ca?module-path=/usr/lib/libsofthsm2.so&pin-source=file:/run/pin'

A key in an HSM is an EC key on the curve P-256 that is there already
(pkcs11-tool --keypairgen --key-type EC:prime256v1).")]
struct InitArgs {
    /// Folder to create
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    key: KeyArgs,
}

/// The place of the CA's private key.
#[derive(Debug, Args)]
struct KeyArgs {
    /// Private key of the CA in an HSM: pkcs11:token=…;object=…?module-path=…&pin-source=… [default: DIR/ca.key]
    #[arg(long, value_name = "URI", env = "BERTH_CA_KEY", value_parser = ca_key::parse)]
    ca_key: Option<Pkcs11Uri>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki issue ./pki a b c                one folder for each: ./pki/a, ./pki/b, ./pki/c
  berth pki issue ./pki a --host a.example.org --host 10.0.0.2
  berth pki issue ./pki a --out /etc/berth/pki
  berth pki issue ./pki gpu-1 --roles worker               a node that only runs models

A certificate named node-X is valid for nodes X and node-X; any other name only for the node with
that name. Issue again to renew: running nodes read the new files by themselves.")]
struct IssueArgs {
    /// Folder created by `berth pki init`
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Name of the node, which is its name in the cluster unless `berth node --name` overrides it
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    key: KeyArgs,
    /// Folder for the node's files [default: DIR/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Additional DNS name or address in the certificate; nodes need none. Repeatable
    #[arg(long, visible_alias = "hosts", value_name = "HOST,…", value_delimiter = ',')]
    host: Vec<String>,
    /// Roles that the node may have: controller, worker, gateway. Give a node no more than it needs: a controller decides, and
    /// a gateway's API declares models
    #[arg(long, value_name = "ROLE,…", default_value = "controller,worker,gateway")]
    roles: Roles,
    /// Days for which the certificate is valid
    #[arg(long, value_name = "N", default_value_t = DEFAULT_VALIDITY.as_secs() / 86_400, value_parser = clap::value_parser!(u64).range(1..=3_650))]
    days: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki show ./pki/a                     one node; also checks that its files belong together
  berth pki show ./pki -o json | jq '.[].daysLeft'")]
struct ShowArgs {
    /// Certificate, node folder, or authority folder
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

pub(crate) async fn run(args: &PkiArgs) -> Result<(), Failure> {
    match &args.command {
        PkiCommand::Init(args) => init(args),
        PkiCommand::Issue(args) => issue(args),
        PkiCommand::Show(args) => show(args),
        PkiCommand::Revoke(args) => args.run().await,
        PkiCommand::Revocations(args) => args.run().await,
        PkiCommand::Reinstate(args) => args.run().await,
    }
}

impl From<PkiError> for Failure {
    fn from(error: PkiError) -> Self {
        match error.class() {
            Class::Invalid => Self::Invalid(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

fn init(InitArgs { folder, key }: &InitArgs) -> Result<(), Failure> {
    let kept = match &key.ca_key {
        None => {
            Authority::create(folder)?;
            format!("{CA_KEY:<11} issues certificates: keep it safe, and off the nodes")
        }
        Some(uri) => {
            Authority::create_with(folder, ca_key::open(uri)?)?;
            "its key stays in the HSM: say --ca-key to `berth pki issue` and `berth node --authority`, too".to_owned()
        }
    };
    let until = Certificate::read(&folder.join(CA))?.until();
    let shown = folder.display();
    Ok(terminal::print(&format!(
        "made a certificate authority in {shown}; it holds until {until}\n  \
         {CA:<11} what every node trusts\n  \
         {kept}\n  \
         {GOSSIP_KEY:<11} seals what nodes tell each other of their health\n\n\
         next, for each node: berth pki issue {shown} NAME\n"
    ))?)
}

fn issue(args: &IssueArgs) -> Result<(), Failure> {
    if args.out.is_some() && args.names.len() > 1 {
        return Err(Failure::Usage("--out takes the files of one node: leave it out, or name one".to_owned()));
    }
    let authority = match &args.key.ca_key {
        None => Authority::open(&args.folder)?,
        Some(uri) => Authority::open_with(&args.folder, ca_key::open(uri)?)?,
    };
    for name in &args.names {
        let node = WorkerId::new(name)
            .map_err(|error| Failure::Invalid(format!("{name:?} cannot be the name of a node: {error}")))?;
        let issued = authority.issue_with(&node, args.roles, &args.host, Duration::from_secs(args.days * 86_400))?;
        let folder = match &args.out {
            Some(out) => moved(&issued, out)?,
            None => issued,
        };
        let until = Certificate::read(&folder.join(NODE))?.until();
        let (shown, or, roles) = (folder.display(), or(&node), args.roles);
        terminal::print(&format!(
            "issued a certificate for the node {node}{or} with the roles {roles} in {shown}; it holds until {until}\n  \
             {NODE}, {NODE_KEY}, {CA}, {GOSSIP_KEY}\n\n\
             next: copy {shown} to the node, then there: berth node --pki {shown} --store etcd://HOST:PORT\n"
        ))?;
    }
    Ok(())
}

/// The other name that a node with this certificate may have, for people.
fn or(certificate: &WorkerId) -> String {
    match certificate.as_str().split_once('-') {
        Some((_, short)) if WorkerId::new(short).is_ok_and(|short| certifies(certificate, &short)) => {
            format!(" (or {short}, with --name {short})")
        }
        _ => String::new(),
    }
}

/// Moves a node's files elsewhere, also to another file system.
fn moved(from: &Path, to: &Path) -> Result<PathBuf, Failure> {
    fs::create_dir_all(to)?;
    if fs::canonicalize(from)? == fs::canonicalize(to)? {
        return Ok(to.to_owned());
    }
    for file in [CA, GOSSIP_KEY, NODE, NODE_KEY] {
        // A node that runs may read meanwhile: each file is replaced in one step.
        let beside = to.join(file).with_extension("new");
        fs::copy(from.join(file), &beside)?;
        fs::rename(&beside, to.join(file))?;
        fs::remove_file(from.join(file))?;
    }
    // What else somebody put there is left to them.
    let _ = fs::remove_dir(from);
    Ok(to.to_owned())
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let files = certificates(&args.path)?;
    let found = files.iter().map(|file| Certificate::read(file)).collect::<Result<Vec<_>, _>>()?;
    let whole = args.path.join(NODE).exists().then(|| Identity::load(&args.path));
    match args.output {
        Form::Json | Form::Yaml => {
            let all: Vec<_> = found.iter().map(Certificate::machine).collect();
            print_value(&json!(all), args.output)?;
        }
        _ => {
            let mut text: String = found.iter().map(Certificate::shown).collect::<Vec<_>>().join("\n");
            if let Some(Ok(identity)) = &whole {
                let name = identity.name();
                // Formatting into a string cannot fail.
                let _ = write!(text, "\n{} can start the node {name}{}\n", args.path.display(), or(name));
            }
            terminal::print(&text)?;
        }
    }
    match whole {
        Some(Err(error)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The certificates in a place: itself, a node's, or an authority's and those that it issued.
fn certificates(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let own: Vec<PathBuf> = [NODE, CA].iter().map(|file| path.join(file)).filter(|file| file.exists()).collect();
    let mut issued = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path().join(NODE);
        if file.exists() {
            issued.push(file);
        }
    }
    issued.sort();
    if own.is_empty() && issued.is_empty() {
        return Err(Failure::NotFound(format!(
            "{} holds neither {NODE} nor {CA}: `berth pki init` and `berth pki issue` make them",
            path.display()
        )));
    }
    Ok(own.into_iter().chain(issued).collect())
}
