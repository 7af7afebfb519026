//! Memory and cores for models, where nobody configures them.
//!
//! The tightest of: control group v2 (`memory.max`, `cpu.max`) at its own path and every one above it, control group
//! v1 (`memory.limit_in_bytes`, `cpu.cfs_quota_us`), and the machine itself.

mod usage;

use std::{
    num::NonZero,
    path::{Path, PathBuf},
};

use berth_spec::ByteSize;

pub use usage::Usage;

/// The share of the memory that models may take. The rest is for the process itself, for requests and answers in
/// flight, for the page cache that fetches go through, and for what engines take beyond their measured size while they
/// run. Nearer to 1, a burst of large requests beside full residency can get the process killed; at 0.4, half the
/// machine idles.
pub const MODEL_SHARE: f64 = 0.8;

/// Limits of a control group above this are "none": v1 writes a number near 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The memory and cores of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// Memory in bytes: the machine's, or the tightest limit of its control groups.
    pub memory: ByteSize,
    /// CPU cores that this process may use, in fractions of one.
    pub cpus: f32,
    /// The origin of the memory limit, for people.
    pub memory_from: &'static str,
}

impl Capacity {
    /// Reads what this process may use.
    #[must_use]
    pub fn probe() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::below(Path::new("/"), cores)
    }

    /// The memory that models may take by default.
    #[must_use]
    pub fn for_models(&self) -> ByteSize {
        ByteSize((self.memory.0 as f64 * MODEL_SHARE) as u64)
    }

    /// As [`probe`](Self::probe), with another root of the file system.
    fn below(root: &Path, cores: usize) -> Self {
        let groups = Groups::of(root);
        let machine = (mem_total(root).unwrap_or(ByteSize::gib(1)), "machine");
        let v2 = groups.v2.iter().filter_map(|dir| number(&dir.join("memory.max"))).min();
        let v1 = groups.v1_memory.iter().filter_map(|dir| number(&dir.join("memory.limit_in_bytes"))).min();
        let limits = [(v2, "cgroup v2"), (v1, "cgroup v1")].into_iter();
        let limits = limits.filter_map(|(limit, from)| Some((ByteSize(limit.filter(|&l| l < NO_LIMIT)?), from)));
        let (memory, memory_from) = limits.chain([machine]).min_by_key(|(memory, _)| *memory).unwrap_or(machine);

        let v2 = groups.v2.iter().filter_map(|dir| quota_v2(&dir.join("cpu.max")));
        let v1 = groups.v1_cpu.iter().filter_map(|dir| quota_v1(dir));
        let cpus = v2.chain(v1).fold(cores as f32, f32::min);
        Self { memory, cpus, memory_from }
    }
}

/// The folders of this process's control groups, innermost first.
struct Groups {
    v2: Vec<PathBuf>,
    v1_memory: Vec<PathBuf>,
    v1_cpu: Vec<PathBuf>,
}

impl Groups {
    fn of(root: &Path) -> Self {
        let mut groups = Self { v2: Vec::new(), v1_memory: Vec::new(), v1_cpu: Vec::new() };
        let mount = root.join("sys/fs/cgroup");
        // Each line: `id:controllers:path`; the one without controllers is version 2.
        for line in fs_err::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let has = |name| controllers.split(',').any(|controller| controller == name);
            if controllers.is_empty() {
                groups.v2.extend(upwards(&mount, path));
            }
            if has("memory") {
                groups.v1_memory.extend(upwards(&mount.join("memory"), path));
            }
            if has("cpu") {
                groups.v1_cpu.extend(upwards(&mount.join("cpu"), path));
            }
        }
        groups
    }
}

/// `mount/path` and every folder above it up to `mount`. In a container the path may be the host's and lead nowhere:
/// what cannot be read is no limit.
fn upwards(mount: &Path, path: &str) -> Vec<PathBuf> {
    let inside = Path::new(path.trim_start_matches('/'));
    inside.ancestors().map(|below| mount.join(below)).collect()
}

fn number(file: &Path) -> Option<u64> {
    fs_err::read_to_string(file).ok()?.trim().parse().ok()
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn quota_v2(file: &Path) -> Option<f32> {
    let text = fs_err::read_to_string(file).ok()?;
    let mut fields = text.split_whitespace();
    let quota: f32 = fields.next()?.parse().ok()?;
    let period: f32 = fields.next()?.parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn quota_v1(dir: &Path) -> Option<f32> {
    let read = |name: &str| fs_err::read_to_string(dir.join(name)).ok()?.trim().parse::<f32>().ok();
    let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn mem_total(root: &Path) -> Option<ByteSize> {
    let text = fs_err::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(ByteSize(kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts() {
        let meminfo = ("proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\n");
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let v1 = ("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/c\n");
        let gib = ByteSize::gib;
        type Files = Vec<(&'static str, &'static str)>;
        let cases: Vec<(&str, Files, ByteSize, f32, &str)> = vec![
            ("bare machine", vec![meminfo], gib(8), 4.0, "machine"),
            (
                "v2, limit above",
                vec![
                    meminfo,
                    v2,
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "2147483648\n"),
                    ("sys/fs/cgroup/a/b/cpu.max", "150000 100000\n"),
                ],
                gib(2),
                1.5,
                "cgroup v2",
            ),
            (
                "v2 in a container: the path is the host's",
                vec![meminfo, v2, ("sys/fs/cgroup/memory.max", "1073741824"), ("sys/fs/cgroup/cpu.max", "max 100000")],
                gib(1),
                4.0,
                "cgroup v2",
            ),
            (
                "v1",
                vec![
                    meminfo,
                    v1,
                    ("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "3221225472"),
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "200000"),
                    ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000"),
                ],
                gib(3),
                2.0,
                "cgroup v1",
            ),
            (
                "v1 without a limit",
                vec![meminfo, v1, ("sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712")],
                gib(8),
                4.0,
                "machine",
            ),
        ];
        for (what, files, memory, cpus, memory_from) in cases {
            let root = tempfile::tempdir().expect("a folder");
            for (path, text) in files {
                let path = root.path().join(path);
                fs_err::create_dir_all(path.parent().expect("a parent")).expect(what);
                fs_err::write(path, text).expect(what);
            }
            assert_eq!(Capacity::below(root.path(), 4), Capacity { memory, cpus, memory_from }, "{what}");
        }
    }
}
