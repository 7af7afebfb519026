//! The memory of a process and of those that it started, as the kernel sees it.

use std::path::{Path, PathBuf};

use berth_spec::ByteSize;

/// The memory of a process and its descendants, shared pages by share.
pub(in crate::runtime) fn of(process: u32) -> Option<ByteSize> {
    let mut waiting = vec![process];
    let (mut sum, mut seen) = (0, 0);
    while let Some(process) = waiting.pop() {
        seen += 1;
        let folder = PathBuf::from(format!("/proc/{process}"));
        sum += pss(&folder).unwrap_or(0);
        // A model with more processes than this is counted in part.
        if seen < 256 {
            let children = fs_err::read_to_string(folder.join(format!("task/{process}/children"))).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    (sum > 0).then_some(ByteSize(sum << 10))
}

fn pss(folder: &Path) -> Option<u64> {
    let text = fs_err::read_to_string(folder.join("smaps_rollup")).ok();
    let pss =
        text.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Pss:")).map(str::to_owned));
    let line = pss.or_else(|| {
        let text = fs_err::read_to_string(folder.join("status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).map(str::to_owned)
    })?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
