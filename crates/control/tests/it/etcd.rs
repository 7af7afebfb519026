//! The store on real etcd processes, started here on free ports of the loopback interface.
//!
//! Where etcd is not installed these tests say so and pass, unless `BERTH_REQUIRE_ETCD` is set, as `cargo xtask test` does
//! after installing it.

mod faults;
mod limits;
mod proxy;
mod secured;
mod watching;

use std::{
    ffi::OsStr,
    fmt::Debug,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use berth_control::store::{
    Store,
    etcd::{EtcdConfig, EtcdStore, Timeouts},
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

pub(crate) use proxy::Proxy;

/// Limit for etcd to answer on a machine that compiles beside the tests.
const START: Duration = Duration::from_secs(120);

/// Members of one etcd cluster; they end, at once and without grace, when this is dropped.
pub(crate) struct Etcd {
    members: Vec<Member>,
    scheme: &'static str,
    folder: TempDir,
}

struct Member {
    port: u16,
    arguments: Vec<String>,
    /// `None` while it is dead.
    process: Option<Child>,
}

impl Etcd {
    /// One member; `None` where etcd is not installed and need not be.
    pub(crate) fn start() -> Option<Self> {
        Self::with(1, &[])
    }

    /// So many members, with further arguments.
    pub(crate) fn with(members: usize, extra: &[&str]) -> Option<Self> {
        Self::within(tempfile::tempdir().expect("a folder"), "http", members, extra)
    }

    /// The same in a folder that holds something already, for which `{folder}` stands in arguments. `scheme` is that of
    /// clients.
    pub(crate) fn within(folder: TempDir, scheme: &'static str, members: usize, extra: &[&str]) -> Option<Self> {
        if !installed() {
            return None;
        }
        let ports = free_ports(members * 2);
        let (clients, peers) = ports.split_at(members);
        let peer = |i: usize| format!("m{i}=http://127.0.0.1:{}", peers[i]);
        let cluster: Vec<String> = (0..members).map(peer).collect();
        let start = |i: usize| {
            let (port, peer) = (clients[i], peers[i]);
            let mut arguments = vec![
                format!("--name=m{i}"),
                format!("--data-dir={{folder}}/m{i}"),
                format!("--listen-client-urls={scheme}://127.0.0.1:{port}"),
                format!("--advertise-client-urls={scheme}://127.0.0.1:{port}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
                format!("--initial-cluster={}", cluster.join(",")),
                // Nobody cuts the power here: what is killed loses nothing that the kernel has.
                "--unsafe-no-fsync".to_owned(),
            ];
            arguments.extend(extra.iter().map(|&argument| argument.to_owned()));
            let here = folder.path().display().to_string();
            let arguments = arguments.into_iter().map(|argument| argument.replace("{folder}", &here)).collect();
            let mut member = Member { port, arguments, process: None };
            member.start(folder.path());
            member
        };
        let members = (0..members).map(start).collect();
        Some(Self { members, scheme, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `HOST:PORT` of every member.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect()
    }

    /// Configuration with the addresses of all members.
    pub(crate) fn config(&self) -> EtcdConfig {
        let scheme = if self.scheme == "https" { "etcds" } else { "etcd" };
        EtcdConfig::parse(&format!("{scheme}://{}", self.endpoints().join(","))).expect("an address")
    }

    /// A store on all members, once they answer.
    pub(crate) async fn store(&self) -> EtcdStore {
        self.open(self.config()).await
    }

    /// The same, for as long as a cluster may take on a busy machine when it has lost a member.
    pub(crate) async fn patient_store(&self) -> EtcdStore {
        self.store().await.with_patience(Timeouts { whole: START, ..Timeouts::default() })
    }

    /// The same, in a place of its own.
    pub(crate) async fn store_at(&self, prefix: &str) -> EtcdStore {
        self.open(EtcdConfig { prefix: prefix.to_owned(), ..self.config() }).await
    }

    /// A store with these settings, once it can be had.
    pub(crate) async fn open(&self, config: EtcdConfig) -> EtcdStore {
        let patience = config.patience;
        let patient = EtcdConfig { patience: Timeouts { whole: START, ..patience }, ..config };
        EtcdStore::connect(patient).await.expect("etcd starts").with_patience(patience)
    }

    /// As in "3.4.23".
    pub(crate) fn version(&self) -> String {
        let said = Command::new("etcd").arg("--version").output().expect("it is installed");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.lines().find_map(|line| line.strip_prefix("etcd Version: ")).expect("a version").to_owned()
    }

    /// The member that leads the others.
    pub(crate) async fn leader(&self) -> usize {
        let told = self.etcdctl(&["endpoint", "status", "--write-out=fields"]);
        let field = |line: &str, name: &str| line.strip_prefix(name).map(|value| value.trim().to_owned());
        let (mut ids, mut leaders) = (Vec::new(), Vec::new());
        for line in told.lines() {
            ids.extend(field(line, "\"MemberID\" :"));
            leaders.extend(field(line, "\"Leader\" :"));
        }
        ids.iter().position(|id| Some(id) == leaders.first()).expect("a leader")
    }

    /// Runs `etcdctl` on all members and gives what it prints.
    pub(crate) fn etcdctl<A: AsRef<OsStr> + Debug>(&self, arguments: &[A]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.endpoints().join(",")))
            // Members may not be up yet.
            .args(["--dial-timeout", "--command-timeout"].map(|flag| format!("{flag}={}s", START.as_secs())))
            .args(arguments)
            .output()
            .expect("etcdctl runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Starts one that was killed.
    pub(crate) fn revive(&mut self, member: usize) {
        let folder = self.folder.path().to_owned();
        self.members[member].start(&folder);
    }

    /// Stands still, and keeps its connections: half open to whoever is at the other end.
    pub(crate) fn pause(&self, member: usize) {
        let pid = self.members[member].signal(Signal::STOP);
        // On a busy machine its threads go on until one of them is given the signal.
        waitpid(Some(pid), WaitOptions::UNTRACED).expect("it is ours");
    }

    /// Goes on.
    pub(crate) fn resume(&self, member: usize) {
        self.members[member].signal(Signal::CONT);
    }
}

impl Member {
    fn start(&mut self, folder: &Path) {
        let path = folder.join(format!("log-{}", self.port));
        let log = fs_err::OpenOptions::new().create(true).append(true).open(path).expect("a log");
        let process = Command::new("etcd")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.into_parts().0)
            .spawn()
            .expect("etcd starts");
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it is ours");
            process.wait().expect("it ends");
        }
    }

    fn signal(&self, signal: Signal) -> Pid {
        let process = self.process.as_ref().expect("it lives");
        let pid = Pid::from_raw(process.id().cast_signed()).expect("a process");
        kill_process(pid, signal).expect("it is ours");
        pid
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports that nothing listens on, outside of those that connections are given. No test here is given those of another,
/// which may not listen yet, or not at the moment.
fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| rand::random_range(20_000..30_000).into());
    let next = || 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 12_000;
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let ports: Vec<u16> = std::iter::repeat_with(next).take(12_000).filter(free).take(count).collect();
    assert_eq!(ports.len(), count, "free ports");
    ports
}

fn installed() -> bool {
    let found = Command::new("etcd").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("BERTH_REQUIRE_ETCD").is_none(), "etcd is not installed: run `cargo xtask setup`");
        eprintln!("skipped: etcd is not installed; `cargo xtask setup` installs it");
    }
    found
}

/// Entries under a prefix, page by page, in a store that keeps the past.
pub(crate) async fn listed(store: &dyn Store, prefix: &str) -> Vec<berth_control::store::Entry> {
    let mut page = berth_control::store::Page::default();
    let mut entries = Vec::new();
    loop {
        let listing = store.list(prefix, page).await.expect("a page");
        entries.extend(listing.entries);
        match entries.last().filter(|_| listing.more) {
            Some(last) => {
                page = berth_control::store::Page { after: Some(last.key.clone()), limit: 0, at: listing.at };
            }
            None => return entries,
        }
    }
}
