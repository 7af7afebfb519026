//! Use of processor and memory: of the control group where one limits this process, else of the machine.

use std::{path::Path, time::Duration};

use berth_spec::ByteSize;

use super::{Capacity, Groups, NO_LIMIT, mem_total, number, quota_v1, quota_v2};

/// The kernel counts processor time in hundredths of a second, whatever its own tick is.
const TICK: Duration = Duration::from_millis(10);

/// The processor and memory in use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Processor time that was used since some moment in the past, by all cores together: only differences say anything.
    pub busy: Duration,
    /// Memory in use, without what the kernel would give back at once.
    pub memory: ByteSize,
}

impl Usage {
    /// Reads the present use from a few small files of the kernel; what cannot be read counts as nothing.
    #[must_use]
    pub fn probe() -> Self {
        Self::below(Path::new("/"))
    }

    /// As [`probe`](Self::probe), with another root of the file system.
    fn below(root: &Path) -> Self {
        let groups = Groups::of(root);
        Self {
            busy: busy_in(&groups).or_else(|| busy_of_machine(root)).unwrap_or_default(),
            memory: used_in(&groups).or_else(|| used_of_machine(root)).unwrap_or_default(),
        }
    }

    /// The share of all cores that was used since `earlier`, `over` ago; 0 to 100.
    #[must_use]
    pub fn cpu_percent(&self, earlier: &Self, over: Duration, capacity: &Capacity) -> f32 {
        let could = over.as_secs_f32() * capacity.cpus;
        let did = self.busy.saturating_sub(earlier.busy).as_secs_f32();
        if could > 0.0 { (100.0 * did / could).clamp(0.0, 100.0) } else { 0.0 }
    }
}

/// Of the group that limits the cores.
fn busy_in(groups: &Groups) -> Option<Duration> {
    let v2 = groups.v2.iter().find(|dir| quota_v2(&dir.join("cpu.max")).is_some());
    let v2 = v2.and_then(|dir| field(&dir.join("cpu.stat"), "usage_usec")).map(Duration::from_micros);
    let v1 = groups.v1_cpu.iter().find(|dir| quota_v1(dir).is_some());
    v2.or_else(|| v1.and_then(|dir| number(&dir.join("cpuacct.usage"))).map(Duration::from_nanos))
}

/// `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL …`, of which waiting is not working.
fn busy_of_machine(root: &Path) -> Option<Duration> {
    let text = fs_err::read_to_string(root.join("proc/stat")).ok()?;
    let ticks = text.lines().next()?.split_whitespace().skip(1).take(8).map(|ticks| ticks.parse::<u64>().unwrap_or(0));
    let busy: u64 = ticks.enumerate().filter(|(column, _)| !matches!(column, 3 | 4)).map(|(_, ticks)| ticks).sum();
    Some(TICK * u32::try_from(busy).unwrap_or(u32::MAX))
}

/// Of the group that limits the memory.
fn used_in(groups: &Groups) -> Option<ByteSize> {
    let limits = |file: &Path| number(file).is_some_and(|limit| limit < NO_LIMIT);
    let used = |dir: &Path, file: &str, cache: &str| {
        let used = number(&dir.join(file))?;
        Some(ByteSize(used.saturating_sub(field(&dir.join("memory.stat"), cache).unwrap_or(0))))
    };
    let v2 = groups.v2.iter().find(|dir| limits(&dir.join("memory.max")));
    let v1 = groups.v1_memory.iter().find(|dir| limits(&dir.join("memory.limit_in_bytes")));
    v2.and_then(|dir| used(dir, "memory.current", "inactive_file"))
        .or_else(|| v1.and_then(|dir| used(dir, "memory.usage_in_bytes", "total_inactive_file")))
}

fn used_of_machine(root: &Path) -> Option<ByteSize> {
    let kib = field(&root.join("proc/meminfo"), "MemAvailable:")?;
    Some(mem_total(root)?.saturating_sub(ByteSize(kib << 10)))
}

/// The number behind a word at the beginning of a line.
fn field(file: &Path, word: &str) -> Option<u64> {
    let text = fs_err::read_to_string(file).ok()?;
    let mut fields = text.lines().map(str::split_whitespace);
    fields.find_map(|mut line| (line.next() == Some(word)).then(|| line.next())?)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_that_limits_is_looked_at_and_else_the_machine() {
        let machine = [
            ("proc/stat", "cpu  100 0 50 900 30 0 10 0 0 0\ncpu0 1 1 1 1\n"),
            ("proc/meminfo", "MemTotal:       8192 kB\nMemAvailable:   2048 kB\n"),
            ("proc/self/cgroup", "0::/a\n"),
        ];
        let group = [
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "500000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/cpu.stat", "usage_usec 2500000\nuser_usec 1\n"),
        ];
        let root = tempfile::tempdir().expect("a folder");
        let write = |files: &[(&str, &str)]| {
            for (path, text) in files {
                let path = root.path().join(path);
                fs_err::create_dir_all(path.parent().expect("a parent")).expect("made");
                fs_err::write(path, text).expect("written");
            }
        };
        assert_eq!(Usage::below(root.path()), Usage::default(), "nothing can be read");
        write(&machine);
        let seconds = Duration::from_millis(1_600);
        assert_eq!(Usage::below(root.path()), Usage { busy: seconds, memory: ByteSize(6 << 20) });
        write(&group);
        let limited = Usage { busy: Duration::from_millis(2_500), memory: ByteSize(400_000) };
        assert_eq!(Usage::below(root.path()), limited);
    }

    #[test]
    fn percent_are_of_all_cores() {
        let capacity = Capacity { memory: ByteSize(1), cpus: 2.0, memory_from: "machine" };
        let at = |seconds| Usage { busy: Duration::from_secs(seconds), memory: ByteSize::ZERO };
        assert_eq!(at(13).cpu_percent(&at(10), Duration::from_secs(3), &capacity), 50.0);
        assert_eq!(at(10).cpu_percent(&at(13), Duration::from_secs(3), &capacity), 0.0, "a counter that began anew");
        assert_eq!(at(13).cpu_percent(&at(10), Duration::ZERO, &capacity), 0.0);
    }
}
