//! Hosts that steps which fetch packages may reach: the registries of this server, and proxies of the operator before them.
//!
//! Only the operator names registries: by settings, variables of Berth, and files of package managers for the whole machine. An
//! index that the code names, or the address of a package, counts where its host is one of these.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf};

use berth_spec::network::{Destination, Host};
use berth_worker::egress::Upstream;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use url::Url;

/// Hosts of the public registries. Files of PyPI are on a host of their own.
const PUBLIC: [&str; 3] = ["pypi.org", "files.pythonhosted.org", "registry.npmjs.org"];

/// Variables of uv, pip and npm that name registries.
const VARIABLES: [&str; 9] = [
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "NPM_CONFIG_REGISTRY",
];

/// Files of pip and npm for the whole machine that name registries. `/etc/gitconfig` names hosts of Git, and is none.
const FILES: [&str; 5] =
    ["/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"];

/// Schemes of the addresses of registries.
const PLAIN: &str = "http";
const TLS: &str = "https";

/// Registries, and the way to them.
pub(super) struct Registries {
    /// Each with the scheme of its address.
    hosts: BTreeMap<Destination, &'static str>,
    proxies: Matcher,
}

impl Registries {
    /// Reads what the operator says. `index`: the index of packages by a setting; `more`: further hosts by a setting. Blocks.
    pub(super) fn find(environment: &[(OsString, OsString)], index: Option<&str>, more: &[Destination]) -> Self {
        // Most machines have none of these files.
        let files = FILES.iter().map(PathBuf::from).chain(files_of_npm(environment));
        let files = files.filter_map(|file| fs_err::read_to_string(file).ok());
        Self::of(environment, index, more, files)
    }

    fn of(
        environment: &[(OsString, OsString)],
        index: Option<&str>,
        more: &[Destination],
        files: impl Iterator<Item = String>,
    ) -> Self {
        let public = PUBLIC.map(|name| Destination { host: Host::Name(name.to_owned()), port: 443 });
        let with_tls = public.into_iter().chain(more.iter().cloned()).map(|host| (host, TLS));
        let mut hosts: BTreeMap<Destination, &'static str> = with_tls.collect();
        hosts.extend(index.into_iter().flat_map(named_in));
        let names = |name: &OsString| VARIABLES.iter().any(|known| name.eq_ignore_ascii_case(known));
        let values = environment.iter().filter(|(name, _)| names(name)).filter_map(|(_, value)| value.to_str());
        hosts.extend(values.flat_map(named_in));
        files.for_each(|file| hosts.extend(file.lines().flat_map(in_line)));
        // Capital letters first, as curl reads them.
        let proxy = |capital: &str| {
            let of = |wanted: &str| environment.iter().find(|(name, _)| name == wanted)?.1.to_str();
            of(capital).or_else(|| of(&capital.to_ascii_lowercase())).unwrap_or_default().to_owned()
        };
        let proxies = Matcher::builder().all(proxy("ALL_PROXY")).http(proxy("HTTP_PROXY")).https(proxy("HTTPS_PROXY"));
        Self { hosts, proxies: proxies.no(proxy("NO_PROXY")).build() }
    }

    pub(super) fn hosts(&self) -> Vec<Destination> {
        self.hosts.keys().cloned().collect()
    }

    /// The proxy of the operator that a host is behind. `tunnels`: it is asked for by CONNECT; npm does so without TLS, too.
    pub(super) fn upstream(&self, wanted: &Destination, tunnels: bool) -> Option<Upstream> {
        let scheme = if tunnels { self.hosts.get(wanted).copied().unwrap_or(TLS) } else { PLAIN };
        let proxy = self.proxy(scheme, wanted)?;
        let host = proxy.uri().host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let authorization = proxy.basic_auth().and_then(|value| value.to_str().ok()).map(str::to_owned);
        Some(Upstream { host, port: proxy.uri().port_u16().unwrap_or(80), authorization })
    }

    /// The scheme of a proxy of the operator that is not spoken here: `https`, `socks5`.
    pub(super) fn foreign_proxy(&self) -> Option<String> {
        let mut proxies = self.hosts.iter().filter_map(|(host, scheme)| self.proxy(scheme, host));
        proxies.find_map(|proxy| proxy.uri().scheme_str().filter(|scheme| *scheme != PLAIN).map(str::to_owned))
    }

    fn proxy(&self, scheme: &str, host: &Destination) -> Option<Intercept> {
        self.proxies.intercept(&format!("{scheme}://{host}").parse::<http::Uri>().ok()?)
    }
}

impl fmt::Debug for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Proxies may have passwords.
        f.debug_struct("Registries").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// Global settings of npm in the installations of Node.js on the `PATH`: `etc/npmrc` beside the folder of the program, links followed,
/// as npm looks for it.
fn files_of_npm(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()).unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let nodes = folders.filter_map(|folder| fs_err::canonicalize(folder.join("node")).ok());
    nodes.filter_map(|node| Some(node.ancestors().nth(2)?.join("etc/npmrc"))).collect()
}

/// Hosts of the addresses in a list, as variables have them: `https://a/simple`, `name=https://b/simple, http://c`; with schemes.
fn named_in(list: &str) -> impl Iterator<Item = (Destination, &'static str)> {
    list.split(|letter: char| letter.is_whitespace() || matches!(letter, ',' | '"' | '\'')).filter_map(|word| {
        let at = word.find("https://").or_else(|| word.find("http://"))?;
        let url = Url::parse(&word[at..]).ok()?;
        let host = Destination { host: Host::read(url.host_str()?)?, port: url.port_or_known_default()? };
        Some((host, if url.scheme() == PLAIN { PLAIN } else { TLS }))
    })
}

/// Hosts that a line of a file of settings names. Lines of proxies name no registries.
fn in_line(line: &str) -> Vec<(Destination, &'static str)> {
    let line = line.trim();
    let key = line.split_once('=').map_or("", |(key, _)| key);
    if line.starts_with(['#', ';']) || key.to_ascii_lowercase().contains("proxy") {
        return Vec::new();
    }
    named_in(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registries(variables: &[(&str, &str)], files: &[&str]) -> Registries {
        let environment: Vec<(OsString, OsString)> =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let more = ["127.0.0.1:9000".parse().expect("a host")];
        let files = files.iter().map(|&file| file.to_owned());
        Registries::of(&environment, Some("https://user:word@packages.corp:8443/simple"), &more, files)
    }

    /// The hosts beside the public ones and those of settings.
    fn further(variables: &[(&str, &str)], files: &[&str]) -> Vec<String> {
        let hosts = registries(variables, files).hosts().into_iter().map(|host| host.to_string());
        let settings = ["127.0.0.1:9000", "packages.corp:8443"].into_iter();
        let known: Vec<String> =
            PUBLIC.map(|host| format!("{host}:443")).into_iter().chain(settings.map(str::to_owned)).collect();
        let (known, further): (Vec<String>, Vec<String>) = hosts.partition(|host| known.contains(host));
        assert_eq!(known.len(), 5, "{known:?}");
        further
    }

    #[test]
    fn the_operator_names_registries() {
        assert!(further(&[], &[]).is_empty());
        let cases: [(&str, &str, &[&str]); 8] = [
            ("UV_DEFAULT_INDEX", "https://u:p@index.corp/simple", &["index.corp:443"]),
            ("PIP_INDEX_URL", "http://[::1]:3141/root", &["[::1]:3141"]),
            ("UV_INDEX", "corp=https://a.corp/simple  http://b.corp:81/simple", &["a.corp:443", "b.corp:81"]),
            ("UV_FIND_LINKS", "/opt/wheels,https://c.corp/wheels", &["c.corp:443"]),
            ("npm_config_registry", "http://10.0.0.5:4873/", &["10.0.0.5:4873"]),
            ("HTTPS_PROXY", "http://proxy.corp:3128", &[]),
            ("UV_PUBLISH_URL", "https://d.corp/", &[]),
            ("UV_DEFAULT_INDEX", "ftp://e.corp/", &[]),
        ];
        for (name, value, hosts) in cases {
            assert_eq!(further(&[(name, value)], &[]), hosts, "{name}");
        }
    }

    #[test]
    fn files_of_the_machine_name_registries() {
        let pip = "[global]\nindex-url = https://a.corp/simple\nextra-index-url =\n    https://b.corp/simple\n    http://c.corp\n\
                   proxy = http://proxy.corp:3128\n# index-url = https://old.corp\n";
        assert_eq!(further(&[], &[pip]), ["a.corp:443", "b.corp:443", "c.corp:80"]);
        let npm = "registry=\"https://d.corp/npm/\"\n@acme:registry=https://e.corp\n//d.corp/npm/:_authToken=x\n\
                   https-proxy=http://proxy.corp:3128\n;registry=https://old.corp\n";
        assert_eq!(further(&[], &[npm]), ["d.corp:443", "e.corp:443"]);
    }

    #[test]
    fn an_installation_of_node_has_settings_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        for made in ["bin", "node-20/bin", "node-20/etc"] {
            fs_err::create_dir_all(at(made)).expect("a folder");
        }
        fs_err::write(at("node-20/bin/node"), "").expect("a program");
        fs_err::write(at("node-20/etc/npmrc"), "registry=https://f.corp/npm/\n").expect("settings");
        fs_err::os::unix::fs::symlink(at("node-20/bin/node"), at("bin/node")).expect("a link");
        let found = Registries::find(&[("PATH".into(), at("bin").into())], None, &[]).hosts();
        assert!(found.contains(&"f.corp:443".parse().expect("a host")), "{found:?}");
    }

    #[test]
    fn hosts_behind_a_proxy_of_the_operator_are_asked_for_there() {
        let variables = [
            ("https_proxy", "http://u:p@proxy.corp:3128"),
            ("HTTP_PROXY", "http://[::1]"),
            ("NO_PROXY", "corp,10.0.0.0/8"),
            ("npm_config_registry", "http://plain.test:4873"),
        ];
        let registries = registries(&variables, &[]);
        let through = |host: &str, tunnels| {
            let found = registries.upstream(&host.parse().expect("a host"), tunnels);
            found.map(|proxy| (proxy.host, proxy.port, proxy.authorization))
        };
        let secret = Some("Basic dTpw".to_owned());
        assert_eq!(through("pypi.org:443", true), Some(("proxy.corp".to_owned(), 3128, secret)));
        let plain = Some(("::1".to_owned(), 80, None));
        assert_eq!((through("pypi.org:80", false), through("plain.test:4873", true)), (plain.clone(), plain));
        for host in ["packages.corp:8443", "10.0.0.5:4873"] {
            assert_eq!((through(host, true), through(host, false)), (None, None), "{host}");
        }
        assert_eq!(registries.foreign_proxy(), None);
    }

    #[test]
    fn proxies_of_other_kinds_are_known() {
        for (proxy, foreign) in [
            ("socks5h://proxy.corp:1080", Some("socks5h")),
            ("https://proxy.corp", Some("https")),
            ("proxy.corp:3128", None),
            ("", None),
        ] {
            assert_eq!(registries(&[("ALL_PROXY", proxy)], &[]).foreign_proxy().as_deref(), foreign, "{proxy}");
        }
        let unused = [("ALL_PROXY", "socks5://proxy.corp"), ("NO_PROXY", "*,127.0.0.1")];
        assert_eq!(registries(&unused, &[]).foreign_proxy(), None, "no registry is behind it");
    }
}
