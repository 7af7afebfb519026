//! `berth login`: checks a server and who one is there, and keeps both as a context.

use std::path::{Path, PathBuf};

use berth_spec::Namespace;
use berth_wire::api::PrincipalView;
use clap::Args;
use url::Url;

use super::whoami::described;
use crate::{
    client::{ApiArgs, ConnectArgs},
    contexts::{self, Context, Contexts},
    failure::Failure,
    oidc::OidcArgs,
    terminal,
};

/// Port of the gateway where only the control API is named: the default one.
const GATEWAY_PORT: u16 = 8080;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth login https://berth.example.org:8081 --token-file -     the token from standard input
  berth login berth-a:8081,berth-b:8081 --ca ca.pem --token-file t --context prod
  berth login https://localhost:8081 --ca ca.pem --client-cert ada.pem --client-key ada.key
  berth login https://berth.example.org:8081 --oidc https://login.example.org/realms/ml
                                         a code for any browser; the token renews itself

The context is kept in ~/.config/berth/config.yaml (BERTH_CLIENT_CONFIG names another file) and
becomes the current one. The token is kept in a file beside it that only you can read; files of CA
and certificate are named there and stay where they are.")]
pub(crate) struct LoginArgs {
    /// Address of the control API; for a cluster, several addresses separated by commas
    #[arg(value_name = "URL,…")]
    api: String,
    /// Address of the gateway [default: the host of the control API, port 8080]
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// Namespace of commands that name none
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<Namespace>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    oidc: OidcArgs,
}

pub(crate) async fn run(args: LoginArgs) -> Result<(), Failure> {
    let connect = &args.connect;
    let addresses = args.api.split(',').map(str::trim).filter(|text| !text.is_empty());
    let addresses = addresses.map(|text| connect.address(text)).collect::<Result<Vec<Url>, _>>()?;
    let Some(first) = addresses.first() else {
        return Err(Failure::Usage(
            "the address is empty: write for example https://berth.example.org:8081".to_owned(),
        ));
    };
    let name = connect
        .context()
        .map_or_else(|| first.host_str().unwrap_or("server").replace([':', '[', ']'], "-"), str::to_owned);
    contexts::valid(&name)?;
    let http = match &args.http {
        Some(http) => connect.address(http)?,
        None => gateway_of(first),
    };
    let (login, token) = match args.oidc.log_in().await? {
        Some((login, token)) => (Some(login), Some(token)),
        None => (None, args.connect.given_token()?),
    };
    let connect = args.connect.clone().with_token(token.clone());
    let api = addresses.iter().map(|url| url.as_str().trim_end_matches('/')).collect::<Vec<_>>().join(",");
    let client = ApiArgs { api: api.clone(), connect: connect.clone() }.client()?;
    // A login at an issuer takes a person: it is not thrown away because the server has yet to fetch the issuer's keys.
    let me: PrincipalView = client.get_when_known(&["whoami"]).await?;
    let [ca, client_cert, client_key] = connect.files().map(|file| file.map(absolute));
    let gateway = http.as_str().trim_end_matches('/').to_owned();
    let assumed = if args.http.is_some() { "" } else { " (assumed; --http URL names another)" };
    let said = format!(
        "{}\ncontext {name} is kept, and is the current one\n  control API {api}\n  gateway {gateway}{assumed}",
        described(&me)
    );
    let context = Context {
        name: name.clone(),
        api,
        http: Some(gateway),
        ca: ca.transpose()?,
        client_cert: client_cert.transpose()?,
        client_key: client_key.transpose()?,
        token_file: None,
        namespace: args.namespace.map(|namespace| namespace.to_string()),
    };
    let mut all = Contexts::read()?;
    all.keep(context, token.as_ref(), login.as_ref())?;
    all.current = Some(name);
    all.write()?;
    Ok(terminal::print(&said)?)
}

/// The gateway beside a control API.
fn gateway_of(api: &Url) -> Url {
    let mut http = api.clone();
    http.set_path("/");
    // What has a host can have a port.
    let _ = http.set_port(Some(GATEWAY_PORT));
    http
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    Ok(fs_err::canonicalize(path)?)
}
