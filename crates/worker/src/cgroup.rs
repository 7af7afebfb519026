//! The control groups of a process that runs other people's code (a model, a function, a build): how much memory and processor
//! time and how many processes it may take, whether the kernel killed it for memory, and whatever it left behind.
//!
//! Version 1 (`memory`, `cpu`, `pids`) below this process's own groups, wherever their folders can be written. Version 2 where
//! this process is alone in its group: it moves into a leaf of its own, as the kernel wants, and hands the controllers
//! down. Where neither can be had, the process limits its own data (`RLIMIT_DATA`), and its processor time is not limited.

mod maker;

use std::{
    hash::{BuildHasher as _, RandomState},
    path::{Path, PathBuf},
};

use berth_spec::ByteSize;
use rustix::process::{Pid, Signal, kill_process};

use self::maker::{Maker, clear};

/// The period of a processor quota, in microseconds: the kernel's own default.
const PERIOD: u64 = 100_000;

/// Settings of a group of version 2 where its kernel has them: what exceeds its memory is not swapped for minutes, and
/// ends whole, since code of which one process is missing would wait for it.
const WHERE_THERE_IS: [(&str, &str); 2] = [("memory.swap.max", "0"), ("memory.oom.group", "1")];

/// The controllers that groups of version 2 need.
const HANDED_DOWN: [&str; 3] = ["memory", "cpu", "pids"];

/// The leaf that this process moves into (version 2).
const LEAF: &str = "berth";

/// Bounds of one group.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that its processes may have in memory together; `None`: no limit.
    pub memory: Option<ByteSize>,
    /// Processors, in fractions of one; `None`: no limit.
    pub cpus: Option<f32>,
    /// Processes and threads that it may have together.
    pub processes: u32,
}

/// The groups below which others can be made. Found once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupParents {
    /// Version 2: a folder whose children have the controllers.
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
}

impl CgroupParents {
    /// Looks for them, and ends what was left behind by processes of Berth that are gone. Blocks.
    #[must_use]
    pub fn find() -> Self {
        let parents = Self::below(Path::new("/"));
        [&parents.unified, &parents.memory, &parents.cpu, &parents.pids]
            .into_iter()
            .flatten()
            .for_each(|parent| clear(parent, Maker::this(), |process| Path::new(&format!("/proc/{process}")).exists()));
        parents
    }

    /// The resources that no group can bound, for people.
    #[must_use]
    pub fn lacking() -> Vec<&'static str> {
        let found = Self::below(Path::new("/"));
        let each = [(&found.memory, "memory"), (&found.cpu, "CPU time"), (&found.pids, "number of processes")];
        let lacking = each.into_iter().filter(|(parent, _)| parent.is_none() && found.unified.is_none());
        lacking.map(|(_, name)| name).collect()
    }

    fn below(root: &Path) -> Self {
        let mount = root.join("sys/fs/cgroup");
        let mut parents = Self::default();
        for line in fs_err::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let path = path.trim_start_matches('/');
            let has = |name| controllers.split(',').any(|controller| controller == name);
            if controllers.is_empty() {
                parents.unified = handed_down(&mount.join(path));
            }
            if has("memory") {
                parents.memory = Some(mount.join("memory").join(path)).filter(|parent| can_write(parent));
            }
            if has("pids") {
                parents.pids = Some(mount.join("pids").join(path)).filter(|parent| can_write(parent));
            }
            if has("cpu") {
                // The folder may have the names of all controllers that share it.
                let named = [mount.join(controllers), mount.join("cpu")].into_iter().map(|mount| mount.join(path));
                parents.cpu = named.into_iter().find(|parent| can_write(parent));
            }
        }
        parents
    }
}

/// A version 2 group whose children can be limited; makes it one if this process is alone in it.
fn handed_down(own: &Path) -> Option<PathBuf> {
    let words = |file: &str| fs_err::read_to_string(own.join(file)).unwrap_or_default();
    let offers = |text: &str| HANDED_DOWN.iter().all(|wanted| text.split_whitespace().any(|word| word == *wanted));
    if own.ends_with(LEAF)
        && let Some(parent) = own.parent()
        && offers(&fs_err::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default())
    {
        // This process has moved before.
        return Some(parent.to_owned()).filter(|parent| can_write(parent));
    }
    if !offers(&words("cgroup.controllers")) || !can_write(own) {
        return None;
    }
    let me = std::process::id().to_string();
    if words("cgroup.procs").split_whitespace().any(|process| process != me) {
        return None;
    }
    let leaf = own.join(LEAF);
    fs_err::create_dir_all(&leaf).ok()?;
    fs_err::write(leaf.join("cgroup.procs"), me).ok()?;
    fs_err::write(own.join("cgroup.subtree_control"), format!("+{}", HANDED_DOWN.join(" +"))).ok()?;
    Some(own.to_owned())
}

fn can_write(parent: &Path) -> bool {
    rustix::fs::access(parent, rustix::fs::Access::WRITE_OK).is_ok()
}

fn kill(group: &Path) {
    for process in fs_err::read_to_string(group.join("cgroup.procs")).unwrap_or_default().split_whitespace() {
        if let Some(process) = process.parse().ok().and_then(Pid::from_raw) {
            // It may just have ended.
            let _ = kill_process(process, Signal::KILL);
        }
    }
}

/// The groups of one process and its children. Dropping it ends whatever is in them, and removes them.
#[derive(Debug, Default)]
pub struct Cgroup {
    memory: Option<PathBuf>,
    groups: Vec<PathBuf>,
    limit: Option<ByteSize>,
}

impl Cgroup {
    /// Makes groups with these limits. What cannot be made is left out: the second value says what.
    #[must_use]
    pub fn raise(parents: &CgroupParents, limits: Limits) -> (Self, Option<String>) {
        let Limits { memory, cpus, processes } = limits;
        // The number is random: groups of a process that was killed, and had the number of this one, may be there still.
        let name = Maker::this().name(RandomState::new().hash_one(0));
        let mut cgroup = Self { memory: None, groups: Vec::new(), limit: memory };
        let quota = cpus.map(|cpus| (f64::from(cpus) * PERIOD as f64) as u64).map(|quota| quota.max(1_000));
        let mut made = |parent: &Path, limits: &[(&str, Option<String>)]| -> Result<PathBuf, String> {
            let group = parent.join(&name);
            let told = |error: std::io::Error| format!("control group {}: {error}", group.display());
            fs_err::create_dir(&group).map_err(told)?;
            cgroup.groups.push(group.clone());
            for (file, value) in limits {
                if let Some(value) = value {
                    fs_err::write(group.join(file), value).map_err(told)?;
                }
            }
            for (file, value) in WHERE_THERE_IS {
                if group.join(file).exists() {
                    fs_err::write(group.join(file), value).map_err(told)?;
                }
            }
            Ok(group)
        };
        let bytes = memory.map(|memory| memory.0.to_string());
        let processes = Some(processes.to_string());
        let outcome = match parents {
            CgroupParents { unified: Some(parent), .. } => {
                let quota = quota.map(|quota| format!("{quota} {PERIOD}"));
                made(parent, &[("memory.max", bytes), ("cpu.max", quota), ("pids.max", processes)]).map(Some)
            }
            CgroupParents { memory, cpu, pids, .. } => {
                let memory = memory.as_deref().map(|parent| made(parent, &[("memory.limit_in_bytes", bytes)]));
                let quota = quota.map(|quota| quota.to_string());
                let period = Some(PERIOD.to_string());
                let limits = [("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota)];
                let cpu = cpu.as_deref().map(|parent| made(parent, &limits)).transpose();
                let processes = [("pids.max", processes)];
                let pids = pids.as_deref().map(|parent| made(parent, &processes)).transpose();
                memory.transpose().and_then(|memory| cpu.and(pids).map(|_| memory))
            }
        };
        match outcome {
            Ok(group) => {
                cgroup.memory = group;
                (cgroup, None)
            }
            Err(why) => (cgroup, Some(why)),
        }
    }

    /// The folders that the process is to join.
    #[must_use]
    pub fn groups(&self) -> &[PathBuf] {
        &self.groups
    }

    /// The limit that the process must set itself, where no group does.
    #[must_use]
    pub fn own_limit(&self) -> Option<ByteSize> {
        self.limit.filter(|_| self.memory.is_none())
    }

    /// True if the kernel killed something in it for memory.
    #[must_use]
    pub fn ran_out_of_memory(&self) -> bool {
        let Some(group) = &self.memory else { return false };
        ["memory.oom_control", "memory.events"].iter().any(|file| count(&group.join(file), "oom_kill") > 0)
    }

    /// The memory that its processes take, without what the kernel would give back at once.
    #[must_use]
    pub fn memory(&self) -> Option<ByteSize> {
        let group = self.memory.as_ref()?;
        let used = |file: &str| fs_err::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        let used = used("memory.current").or_else(|| used("memory.usage_in_bytes"))?;
        let stat = fs_err::read_to_string(group.join("memory.stat")).unwrap_or_default();
        Some(ByteSize(used.saturating_sub(number(&stat, "inactive_file") + number(&stat, "active_file"))))
    }

    /// Ends every process in it.
    pub fn kill(&self) {
        self.groups.iter().for_each(|group| kill(group));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for group in &self.groups {
            kill(group);
            // What was killed is gone a moment later; until then the folder cannot go.
            for _ in 0..50 {
                if std::fs::remove_dir(group).is_ok() || !group.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

/// The number behind a word at the beginning of a line of a file.
fn count(file: &Path, word: &str) -> u64 {
    number(&fs_err::read_to_string(file).unwrap_or_default(), word)
}

fn number(text: &str, word: &str) -> u64 {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut line| (line.next() == Some(word)).then(|| line.next()?.parse().ok())?).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(memory: ByteSize, cpus: f32) -> Limits {
        Limits { memory: Some(memory), cpus: Some(cpus), processes: 1024 }
    }

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs_err::write(path, text).expect("written");
        }
    }

    #[test]
    fn version_1_below_the_own_groups() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), &[("proc/self/cgroup", "5:pids:/p\n4:memory:/m\n2:cpu,cpuacct:/c\n0::/u\n")]);
        write(
            root.path(),
            &[("sys/fs/cgroup/memory/m/x", ""), ("sys/fs/cgroup/cpu,cpuacct/c/x", ""), ("sys/fs/cgroup/pids/p/x", "")],
        );
        let parents = CgroupParents::below(root.path());
        let mount = root.path().join("sys/fs/cgroup");
        let expected = CgroupParents {
            unified: None,
            memory: Some(mount.join("memory/m")),
            cpu: Some(mount.join("cpu,cpuacct/c")),
            pids: Some(mount.join("pids/p")),
        };
        assert_eq!(parents, expected);
        let (cgroup, undone) = Cgroup::raise(&parents, bounds(ByteSize::mib(64), 1.5));
        assert_eq!((undone, cgroup.own_limit(), cgroup.groups().len()), (None, None, 3));
        let read = |group: &Path, file: &str| fs_err::read_to_string(group.join(file)).expect(file);
        assert_eq!(read(&cgroup.groups()[0], "memory.limit_in_bytes"), "67108864");
        assert_eq!(read(&cgroup.groups()[1], "cpu.cfs_quota_us"), "150000");
        assert_eq!(read(&cgroup.groups()[2], "pids.max"), "1024");
        write(&cgroup.groups()[0], &[("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")]);
        write(&cgroup.groups()[0], &[("memory.usage_in_bytes", "5000\n"), ("memory.stat", "inactive_file 1000\n")]);
        assert!(cgroup.ran_out_of_memory());
        assert_eq!(cgroup.memory(), Some(ByteSize(4000)));
    }

    #[test]
    fn version_2_where_the_process_is_alone() {
        let root = tempfile::tempdir().expect("a folder");
        let me = std::process::id().to_string();
        write(
            root.path(),
            &[("proc/self/cgroup", "0::/u\n"), ("sys/fs/cgroup/u/cgroup.controllers", "cpu io memory pids\n")],
        );
        write(root.path(), &[("sys/fs/cgroup/u/cgroup.procs", "1\n")]);
        assert_eq!(CgroupParents::below(root.path()), CgroupParents::default(), "others are in it");
        write(root.path(), &[("sys/fs/cgroup/u/cgroup.procs", &me)]);
        let parents = CgroupParents::below(root.path());
        assert_eq!(parents.unified, Some(root.path().join("sys/fs/cgroup/u")));
        let (cgroup, _) = Cgroup::raise(&parents, bounds(ByteSize::mib(1), 0.5));
        let read = |file: &str| fs_err::read_to_string(cgroup.groups()[0].join(file)).expect(file);
        write(
            root.path(),
            &[("proc/self/cgroup", "0::/u/berth\n"), ("sys/fs/cgroup/u/cgroup.subtree_control", "cpu memory pids\n")],
        );
        assert_eq!(CgroupParents::below(root.path()), parents, "it moves once");
        assert_eq!((read("memory.max"), read("cpu.max")), ("1048576".to_owned(), "50000 100000".to_owned()));
    }

    #[test]
    fn without_groups_the_process_limits_itself() {
        let (cgroup, undone) = Cgroup::raise(&CgroupParents::default(), bounds(ByteSize::gib(1), 1.0));
        assert_eq!((cgroup.own_limit(), undone), (Some(ByteSize::gib(1)), None));
    }
}
