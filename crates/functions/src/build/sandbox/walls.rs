//! The part of the machine that a program in bubblewrap sees: of the system what programs need, the folders that are its own, and
//! nothing of Berth's keys and data.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use berth_sandbox::OwnNetwork;

use super::{Bubblewrap, fetching::Launch};

/// Folders of the system that programs may read.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/run/systemd/resolve"];

/// Files and folders below `/etc` that programs may read. Not all of `/etc`, which holds Berth's keys, nor all of `ssl` and `pki`, whose
/// `private` holds those of others. Bubblewrap follows links: what is behind one is seen under the name of the link.
const ETC: [&str; 37] = [
    // Certificates, as distributions keep them; `static` is the folder of NixOS that links of the others lead to.
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/ca-bundle.pem",
    "ssl/openssl.cnf",
    "ca-certificates",
    "ca-certificates.conf",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "pki/tls/openssl.d",
    "crypto-policies",
    "static",
    // Names of hosts, users and services.
    "resolv.conf",
    "hosts",
    "host.conf",
    "nsswitch.conf",
    "gai.conf",
    "passwd",
    "group",
    "services",
    "protocols",
    // Programs and libraries.
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "python3",
    // Time, formats, the system's name.
    "localtime",
    "timezone",
    "locale.alias",
    "locale.conf",
    "mime.types",
    "magic",
    "magic.mime",
    "fonts",
    "os-release",
    "debian_version",
];

/// Minor versions of Python 3 for which Debian has a folder below `/etc`.
const MINORS: std::ops::Range<u32> = 8..20;

/// Settings of package managers for the whole machine: where packages are, perhaps with credentials. Only steps that fetch packages
/// see them.
pub(super) const SETTINGS: [&str; 4] = ["/etc/pip.conf", "/etc/xdg/pip", "/etc/npmrc", "/etc/gitconfig"];

/// Variables that name files and folders of certificates.
const CERTIFICATES: [&str; 4] = ["SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "NODE_EXTRA_CA_CERTS"];

/// Place of the launcher within bubblewrap, where it is on nobody's path.
const LAUNCHER: &str = "/run/berth-launcher";

/// The network that a program reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkReach<'a> {
    /// None.
    Nothing,
    /// The network of the machine.
    Machine,
    /// Registries of packages, through a proxy on the loopback of a network that this launch gives.
    Registries(&'a Launch),
}

impl<'a> NetworkReach<'a> {
    /// The words of the launcher that stand before bubblewrap, which is started on the new network then.
    pub(super) fn around(self) -> Vec<OsString> {
        match self {
            Self::Registries(launch) if launch.network != OwnNetwork::Given => launcher(&launch.program, launch),
            Self::Nothing | Self::Machine | Self::Registries(_) => Vec::new(),
        }
    }

    /// The launch that bubblewrap is to start, on a network that it makes itself.
    fn within(self) -> Option<&'a Launch> {
        match self {
            Self::Registries(launch) if launch.network == OwnNetwork::Given => Some(launch),
            Self::Nothing | Self::Machine | Self::Registries(_) => None,
        }
    }
}

/// The words of a launcher at a place.
fn launcher(at: &Path, launch: &Launch) -> Vec<OsString> {
    let words = launch.network.arguments(berth_worker::egress::PORT);
    std::iter::once(OsString::from(at)).chain(words).collect()
}

/// The part of the machine that a program sees.
pub(crate) struct Walls<'a> {
    /// Folders beside those of the system that it may read.
    pub(crate) readable: Vec<PathBuf>,
    /// Folders that it may write.
    pub(crate) writable: Vec<PathBuf>,
    /// The network that it reaches.
    pub(crate) reach: NetworkReach<'a>,
    /// Folder that it runs in.
    pub(crate) at: &'a Path,
}

impl Bubblewrap {
    /// Arguments of bubblewrap. It binds in their order: Berth's data is hidden after the folders around it, and before those in it
    /// that the program needs.
    pub(super) fn arguments(&self, walls: &Walls<'_>) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["--unshare-all", "--die-with-parent", "--new-session"].map(Into::into).to_vec();
        // Also the one that a launcher has made around it.
        if walls.reach != NetworkReach::Nothing && walls.reach.within().is_none() {
            words.push("--share-net".into());
        }
        words.extend(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"].map(Into::into));
        let system = of_system();
        let (around, inside): (Vec<&PathBuf>, Vec<&PathBuf>) =
            walls.readable.iter().partition(|folder| self.has_data_below(folder));
        let shown: Vec<&PathBuf> = system.iter().chain(around).collect();
        shown.iter().for_each(|folder| bind(&mut words, "--ro-bind-try", folder));
        let hidden = self.data.as_deref().filter(|_| shown.iter().any(|folder| self.has_data_below(folder)));
        if let Some(hidden) = hidden {
            words.extend(["--tmpfs".into(), hidden.into()]);
        }
        // A file that is seen is not bound again: links on its way may lead nowhere in the sandbox.
        let is_seen = |file: &Path| {
            let mut folders = shown.iter().chain(&inside).copied().chain(&walls.writable);
            folders.any(|folder| file.starts_with(folder)) && hidden.is_none_or(|hidden| !file.starts_with(hidden))
        };
        let certificates: Vec<&PathBuf> = self.certificates.iter().filter(|file| !is_seen(file)).collect();
        inside.iter().chain(&certificates).for_each(|path| bind(&mut words, "--ro-bind-try", path));
        walls.writable.iter().for_each(|folder| bind(&mut words, "--bind", folder));
        if let Some(launch) = walls.reach.within() {
            words.extend(["--ro-bind".into(), launch.program.as_os_str().into(), LAUNCHER.into()]);
        }
        words.extend(["--chdir".into(), walls.at.into(), "--".into()]);
        if let Some(launch) = walls.reach.within() {
            words.extend(launcher(Path::new(LAUNCHER), launch));
        }
        words
    }

    /// True if Berth's data lies below a folder.
    fn has_data_below(&self, folder: &Path) -> bool {
        self.data.as_deref().is_some_and(|data| data != folder && data.starts_with(folder))
    }
}

/// The part of the system that every program sees.
fn of_system() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    paths.extend(ETC.iter().map(|name| Path::new("/etc").join(name)));
    paths.extend(MINORS.map(|minor| PathBuf::from(format!("/etc/python3.{minor}"))));
    paths
}

fn bind(words: &mut Vec<OsString>, how: &str, path: &Path) {
    words.extend([how.into(), path.into(), path.into()]);
}

/// The certificates that an environment names.
pub(super) fn certificates(environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
    let names = |name: &OsString| CERTIFICATES.iter().any(|known| name.eq_ignore_ascii_case(known));
    let named = environment.iter().filter(|(name, _)| names(name));
    named.flat_map(|(_, paths)| std::env::split_paths(paths)).filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line for a program in a folder of Berth's data, and the paths that it binds.
    fn command_line(data: &str, readable: &[&str]) -> (Vec<String>, Vec<String>) {
        let bubblewrap = Bubblewrap {
            certificates: ["/etc/corp/ca.pem", "/etc/ssl/certs/ca.crt"].map(PathBuf::from).to_vec(),
            data: Some(data.into()),
            ..Bubblewrap::default()
        };
        let work = Path::new(data).join("functions/builds/work/1");
        let readable = readable.iter().map(PathBuf::from).collect();
        let walls = Walls { readable, writable: vec![work.clone()], reach: NetworkReach::Machine, at: &work };
        let words = bubblewrap.arguments(&walls);
        let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let binds = words.windows(3).filter(|words| words[0].starts_with("--") && words[0].contains("bind"));
        let bound = binds.map(|words| words[1].clone()).collect();
        (words, bound)
    }

    #[test]
    fn a_program_sees_no_keys_below_etc() {
        let (words, bound) = command_line("/var/lib/berth", &["/usr"]);
        for holder in ["/", "/etc", "/etc/berth", "/etc/ssl", "/etc/ssl/private", "/etc/pki", "/etc/pki/tls"] {
            assert!(!bound.iter().any(|path| path == holder), "{holder}: {bound:?}");
        }
        assert!(!bound.iter().any(|path| path.starts_with("/etc/berth")), "{bound:?}");
        for needed in ["/etc/ssl/certs", "/etc/resolv.conf", "/etc/passwd", "/etc/python3.11", "/etc/corp/ca.pem"] {
            assert!(bound.iter().any(|path| path == needed), "{needed}: {bound:?}");
        }
        assert!(!bound.iter().any(|path| path == "/etc/ssl/certs/ca.crt"), "its folder is bound: {bound:?}");
        assert!(!words.iter().any(|word| word == "/var/lib/berth"), "nothing of it is bound: {words:?}");
        assert!(!SETTINGS.iter().any(|file| bound.iter().any(|path| path == file)), "for steps that fetch: {bound:?}");
    }

    #[test]
    fn data_in_a_folder_that_programs_see_is_hidden() {
        let app = "/opt/berth/data/functions/run/app";
        let (words, _) = command_line("/opt/berth/data", &[app, "/opt/berth"]);
        let at = |how: &str, path: &str| {
            let found = words.windows(2).position(|pair| pair[0] == how && pair[1] == path);
            found.unwrap_or_else(|| panic!("{how} {path}: {words:?}"))
        };
        let hidden = at("--tmpfs", "/opt/berth/data");
        assert!(at("--ro-bind-try", "/opt") < hidden && at("--ro-bind-try", "/opt/berth") < hidden);
        assert!(hidden < at("--ro-bind-try", app) && hidden < at("--bind", "/opt/berth/data/functions/builds/work/1"));
    }

    #[test]
    fn a_step_that_fetches_has_the_network_of_its_launch() {
        let launch = |network| Launch { program: "/usr/local/bin/berth".into(), network };
        let line = |reach| {
            let walls = Walls { readable: Vec::new(), writable: Vec::new(), reach, at: Path::new("/") };
            let words = Bubblewrap::default().arguments(&walls);
            let text = |words: Vec<OsString>| {
                words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
            };
            (text(reach.around()), text(words))
        };
        let given = launch(OwnNetwork::Given);
        let (around, within) = line(NetworkReach::Registries(&given));
        assert!(around.is_empty() && !within.contains("--share-net"), "{around} {within}");
        assert!(within.contains("--ro-bind /usr/local/bin/berth /run/berth-launcher --chdir /"), "{within}");
        assert!(within.ends_with(" -- /run/berth-launcher --sandbox-network given 3128 --"), "{within}");
        let new = launch(OwnNetwork::NewForUser);
        let (around, within) = line(NetworkReach::Registries(&new));
        assert_eq!(around, "/usr/local/bin/berth --sandbox-network new-for-user 3128 --");
        assert!(within.contains("--share-net") && within.ends_with("--chdir / --"), "{within}");
        for (reach, shares) in [(NetworkReach::Nothing, false), (NetworkReach::Machine, true)] {
            let (around, within) = line(reach);
            assert!(around.is_empty() && within.contains("--share-net") == shares, "{reach:?}: {within}");
        }
    }

    #[test]
    fn certificates_are_those_that_variables_name() {
        let environment: [(OsString, OsString); 4] =
            [("SSL_CERT_DIR", "/a:/b"), ("node_extra_ca_certs", "/c.pem"), ("PIP_CERT", "here.pem"), ("HOME", "/root")]
                .map(|(name, value)| (name.into(), value.into()));
        assert_eq!(certificates(&environment), ["/a", "/b", "/c.pem"].map(PathBuf::from));
    }
}
