//! Programs in sandboxes, started as the worker starts them. This program is its own launcher, so that it has a `main` of its
//! own: a test harness has threads, and a launcher has one.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use berth_sandbox::{Isolation, Launcher, Limits, Network, OwnNetwork, Sandbox, Storage, receive, receive_folder};
use tempfile::TempDir;

/// A name, whether this machine can, and the case.
type Case = (&'static str, bool, fn(&Launcher));

fn main() -> ExitCode {
    if let Some(code) = berth_sandbox::entered(own) {
        return code;
    }
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(CONNECTS) {
        return connects(words);
    }
    let launcher = Launcher::find(std::env::current_exe().expect("a program")).expect("it runs");
    let mechanisms = launcher.mechanisms();
    let _ = writeln!(std::io::stderr(), "{mechanisms:?}, missing: {:?}", launcher.missing());
    let cases: [Case; 13] = [
        ("files_of_others_are_not_seen", mechanisms.files, files_of_others_are_not_seen),
        ("hidden_folders_are_empty", mechanisms.files, hidden_folders_are_empty),
        ("only_the_own_folder_is_written", mechanisms.files, only_the_own_folder_is_written),
        ("a_folder_in_memory_has_a_bound_and_is_sent", mechanisms.files, a_folder_in_memory_has_a_bound_and_is_sent),
        ("all_that_is_written_in_memory_has_one_bound", mechanisms.files, all_that_is_written_in_memory_has_one_bound),
        ("processes_of_others_are_not_seen", mechanisms.processes, processes_of_others_are_not_seen),
        ("the_loopback_is_its_own", mechanisms.network, the_loopback_is_its_own),
        ("an_own_network_has_one_way_out", mechanisms.network, an_own_network_has_one_way_out),
        ("no_privileges_are_left", true, no_privileges_are_left),
        ("what_it_leaves_behind_ends_with_it", mechanisms.processes, what_it_leaves_behind_ends_with_it),
        ("it_ends_as_the_program_does", true, it_ends_as_the_program_does),
        ("limits_hold", true, limits_hold),
        ("this_program_goes_on_inside", true, this_program_goes_on_inside),
    ];
    for (name, possible, case) in cases {
        if possible {
            case(&launcher);
        }
        let _ = writeln!(std::io::stderr(), "{name} ... {}", if possible { "ok" } else { "not possible here" });
    }
    ExitCode::SUCCESS
}

/// Continuations of this program.
fn own(name: &str) -> Option<ExitCode> {
    (name == "reads").then(|| {
        let mut path = String::new();
        // A name that cannot be read is that of no file.
        let _ = std::io::stdin().read_line(&mut path);
        ExitCode::from(if fs_err::read(path).is_ok() { 3 } else { 4 })
    })
}

/// A data folder with somebody else's secret, and a folder of one process in it.
struct TestFolders {
    root: TempDir,
}

impl TestFolders {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["data/runs/own", "data/models/mine"] {
            fs_err::create_dir_all(root.path().join(folder)).expect("made");
        }
        for file in ["data/state", "data/models/mine/weights", "elsewhere"] {
            fs_err::write(root.path().join(file), "something").expect("written");
        }
        Self { root }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox {
            isolation: Isolation::Sandbox,
            folder: self.at("data/runs/own"),
            readable: vec![self.at("data/models/mine")],
            hidden: vec![self.at("data")],
            user: Some(61_000),
            ..Sandbox::default()
        }
    }
}

/// A script of the shell: how it ends, and its output.
fn shell(launcher: &Launcher, sandbox: &Sandbox, script: &str) -> (std::process::ExitStatus, String) {
    let mut command = launcher.command(sandbox, Path::new("/bin/sh")).expect("a command");
    command.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    let said = command.output().expect("it runs");
    let text = [said.stdout, said.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (said.status, text)
}

fn answers(launcher: &Launcher, sandbox: &Sandbox, script: &str) -> String {
    let (status, text) = shell(launcher, sandbox, script);
    assert!(status.success(), "{script}: {status}: {text}");
    text.trim().to_owned()
}

fn this_program_goes_on_inside(launcher: &Launcher) {
    let place = TestFolders::new();
    let sandbox = place.sandbox();
    let code = |name: &str, path: &Path| {
        let mut command = launcher.command_own(&sandbox, name).expect("a command");
        let mut child = command.stdin(Stdio::piped()).spawn().expect("started");
        let mut input = child.stdin.take().expect("a pipe");
        write!(input, "{}", path.display()).expect("written");
        drop(input);
        child.wait().expect("ended").code()
    };
    assert_eq!(code("reads", Path::new("/proc/self/status")), Some(3));
    if launcher.mechanisms().files {
        assert_eq!(code("reads", &place.root.path().join("elsewhere")), Some(4));
    }
    assert_eq!(code("else", Path::new("/")), Some(126), "no such continuation");
}

fn files_of_others_are_not_seen(launcher: &Launcher) {
    let place = TestFolders::new();
    let show = |path: &str| format!("cat {} 2>/dev/null || echo none", place.at(path).display());
    for network in [Network::None, Network::Machine] {
        let sandbox = Sandbox { network, ..place.sandbox() };
        let said = |path: &str| answers(launcher, &sandbox, &show(path));
        assert_eq!(said("data/models/mine/weights"), "something");
        for hidden in ["data/state", "elsewhere"] {
            assert_eq!(said(hidden), "none");
        }
        assert_eq!(answers(launcher, &sandbox, "ls -d /root /home /etc/shadow 2>/dev/null; true"), "");
    }
}

fn hidden_folders_are_empty(launcher: &Launcher) {
    let place = TestFolders::new();
    let sandbox =
        Sandbox { readable: vec![place.root.path().to_owned(), place.at("data/models/mine")], ..place.sandbox() };
    let said = answers(launcher, &sandbox, &format!("cd {}; find . | sort", place.root.path().display()));
    let expected = "./data\n./data/models\n./data/models/mine\n./data/models/mine/weights\n./data/runs\n./data/runs/own\n./elsewhere";
    assert_eq!(said, format!(".\n{expected}"));
}

fn only_the_own_folder_is_written(launcher: &Launcher) {
    let place = TestFolders::new();
    let script = "echo 1 > own && echo 1 > /tmp/x && echo 1 > /dev/shm/x && pwd";
    assert_eq!(answers(launcher, &place.sandbox(), script), place.at("data/runs/own").display().to_string());
    assert!(place.at("data/runs/own/own").exists());
    // Below its `/tmp`, folders around those that it sees are in memory: whatever is written there is not in the machine's.
    for path in ["data/models/mine/new", "data/new", "new"] {
        let tried = format!("(echo 1 > {}) 2>/dev/null || echo refused", place.at(path).display());
        let said = answers(launcher, &place.sandbox(), &tried);
        assert!(said == "refused" || !path.contains("mine"), "{path}");
        assert!(!place.at(path).exists());
    }
    for path in ["/usr/x", "/x", "/proc/sys/kernel/core_pattern", "/etc/x", "/dev/x"] {
        let refused = format!("(echo 1 > {path}) 2>/dev/null || echo refused");
        assert_eq!(answers(launcher, &place.sandbox(), &refused), "refused", "{path}");
    }
}

fn processes_of_others_are_not_seen(launcher: &Launcher) {
    let place = TestFolders::new();
    let said = answers(launcher, &place.sandbox(), "echo $$; ls /proc | grep -c '^[0-9]'");
    let (own, count) = said.split_once('\n').expect("two lines");
    assert_eq!(own, "2");
    // Libraries look up their own user.
    assert_eq!(answers(launcher, &place.sandbox(), "grep -c ^model: /etc/passwd && cat /etc/hosts | wc -l"), "1\n2");
    assert!(count.parse::<u32>().expect("a number") <= 5, "{said}");
}

fn the_loopback_is_its_own(launcher: &Launcher) {
    let place = TestFolders::new();
    let said = answers(launcher, &place.sandbox(), "tail -n +3 /proc/net/dev | cut -d: -f1");
    assert_eq!(said, "lo");
}

/// The first argument of this program as one that connects.
const CONNECTS: &str = "--connects";

/// Says something to ports of the loopback, and prints those that took it, and how many bytes standard input holds.
fn connects(ports: impl Iterator<Item = String>) -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().read_to_end(&mut input).expect("nothing");
    for port in ports {
        let number: u16 = port.parse().expect("a port");
        let said = TcpStream::connect(("127.0.0.1", number)).and_then(|mut stream| stream.write_all(b"hello"));
        if said.is_ok() {
            let _ = writeln!(std::io::stdout(), "{port}");
        }
    }
    let _ = writeln!(std::io::stdout(), "{read}");
    ExitCode::SUCCESS
}

fn an_own_network_has_one_way_out(launcher: &Launcher) {
    let network = if launcher.mechanisms().user_namespace { OwnNetwork::NewForUser } else { OwnNetwork::New };
    let of_machine = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let closed = of_machine.local_addr().expect("an address").port().to_string();
    let itself = std::env::current_exe().expect("a program");
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let mut command = Command::new(&itself);
    command.args(network.arguments(3128)).arg(&itself).args([CONNECTS, "3128", &closed]);
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped());
    let child = command.spawn().expect("started");
    // It holds a copy of the other end.
    drop(command);
    let listener = receive(&ours).expect("a listener");
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("read");
    let output = child.wait_with_output().expect("ended");
    let reached = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((said.as_str(), reached.as_str(), output.status.code()), ("hello", "3128\n0\n", Some(0)));
}

fn no_privileges_are_left(launcher: &Launcher) {
    let place = TestFolders::new();
    for isolation in [Isolation::Process, Isolation::Sandbox] {
        let sandbox = Sandbox { isolation, ..place.sandbox() };
        let said =
            answers(launcher, &sandbox, "grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status");
        for line in said.lines() {
            let (name, value) = line.split_once(":\t").expect("a value");
            match name {
                "CapEff" | "CapPrm" => assert_eq!(value, "0000000000000000", "{isolation}"),
                "NoNewPrivs" => assert_eq!(value, "1"),
                "Seccomp" => assert_eq!(value, "2"),
                _ => {}
            }
        }
        for refused in ["unshare -U true", "mount -t tmpfs x /tmp"] {
            let (status, text) = shell(launcher, &sandbox, refused);
            assert!(!status.success(), "{refused}: {text}");
        }
    }
}

fn what_it_leaves_behind_ends_with_it(launcher: &Launcher) {
    let place = TestFolders::new();
    // It would hold the output open, and the call below would not return.
    assert_eq!(answers(launcher, &place.sandbox(), "setsid sleep 1000 & echo begun"), "begun");
}

fn it_ends_as_the_program_does(launcher: &Launcher) {
    let place = TestFolders::new();
    for isolation in [Isolation::Process, Isolation::Sandbox] {
        let sandbox = Sandbox { isolation, ..place.sandbox() };
        assert_eq!(shell(launcher, &sandbox, "exit 7").0.code(), Some(7));
        for signal in [6, 9, 11, 15] {
            assert_eq!(shell(launcher, &sandbox, &format!("kill -{signal} $$")).0.signal(), Some(signal));
        }
        let missing =
            launcher.command(&sandbox, Path::new("/nowhere/python")).expect("a command").output().expect("it runs");
        assert_eq!(missing.status.code(), Some(126));
        assert!(String::from_utf8_lossy(&missing.stderr).contains("/nowhere/python"));
    }
}

fn a_folder_in_memory_has_a_bound_and_is_sent(launcher: &Launcher) {
    let place = TestFolders::new();
    fs_err::write(place.at("data/runs/own/before"), "something").expect("written");
    let limits = Limits { memory_files: Some(1 << 20), ..Limits::default() };
    let sandbox = Sandbox { limits, storage: Storage::MemorySent, ..place.sandbox() };
    let mut command = launcher.command(&sandbox, Path::new("/bin/sh")).expect("a command");
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    command.args(["-c", "cp before after; head -c 100000000 /dev/zero > big; wc -c < big"]);
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped());
    let child = command.spawn().expect("started");
    // It holds a copy of the other end.
    drop(command);
    let folder = receive_folder(&ours).expect("a folder");
    let output = child.wait_with_output().expect("ended");
    let size: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert!((1..=1 << 20).contains(&size), "{size}");
    let copied = format!("/proc/self/fd/{}/after", folder.as_raw_fd());
    assert_eq!(fs_err::read_to_string(copied).expect("it lives as long as it is open"), "something");
    assert!(!place.at("data/runs/own/big").exists(), "it is not on the disk");
}

fn all_that_is_written_in_memory_has_one_bound(launcher: &Launcher) {
    let place = TestFolders::new();
    let limits = Limits { memory_files: Some(1 << 20), ..Limits::default() };
    // Its folder lies in one that is hidden, and that in one that is shown: neither is what is written.
    let readable = vec![place.root.path().to_owned()];
    let sandbox = Sandbox { limits, storage: Storage::Memory, readable, ..place.sandbox() };
    let fill = |path: &str| format!("head -c 700000 /dev/zero > {path} 2>/dev/null && echo whole || echo full");
    let paths = ["own", "/tmp/x", "/dev/shm/x"];
    let script = paths.map(fill).join("; ");
    assert_eq!(answers(launcher, &sandbox, &script), "whole\nfull\nfull");
    let script = format!("{}; rm own; {}", fill("own"), fill("/dev/shm/x"));
    assert_eq!(answers(launcher, &sandbox, &script), "whole\nwhole", "what is removed gives its room back");
    // Files without content take memory as well.
    let script = "i=0; while [ $i -lt 5000 ] && true > f$i; do i=$((i+1)); done 2>/dev/null; echo $i";
    let files: u32 = answers(launcher, &sandbox, script).parse().expect("a number");
    assert!((100..=1_024).contains(&files), "{files}");
    assert!(fs_err::read_dir(place.at("data/runs/own")).expect("a folder").next().is_none(), "nothing is on the disk");
}

fn limits_hold(launcher: &Launcher) {
    let place = TestFolders::new();
    let limits = Limits { files: 64, file_size: 4_096, ..Limits::default() };
    for isolation in [Isolation::Process, Isolation::Sandbox] {
        let sandbox = Sandbox { isolation, limits, ..place.sandbox() };
        assert_eq!(answers(launcher, &sandbox, "ulimit -n; ulimit -c"), "64\n0");
        let (status, _) = shell(launcher, &sandbox, "head -c 100000 /dev/zero > big");
        assert!(!status.success());
        assert!(fs_err::metadata(place.at("data/runs/own/big")).map_or(0, |file| file.len()) <= 4_096);
    }
}
