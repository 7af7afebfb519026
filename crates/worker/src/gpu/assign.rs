//! Gives particular devices to a replica. Pure.
//!
//! The plan counts: what it assigns to a worker fits its devices together. Which device a replica has is decided here,
//! when its load begins, and stays until the replica is unloaded. The smallest devices that suit go first, so that large
//! ones are left for those who need them.

use std::sync::Arc;

use berth_spec::{Gpu, RevisionId, deployment::GpuNeed};

/// A replica and the devices that it has.
pub type AssignedDevices<'a> = (&'a RevisionId, &'a [Arc<str>]);

/// The devices for a need beside those that others hold; or why there are too few, for people.
pub fn assign(devices: &[Gpu], need: &GpuNeed, held: &[AssignedDevices<'_>]) -> Result<Vec<Arc<str>>, String> {
    let holder = |gpu: &Gpu| held.iter().find(|(_, ids)| ids.iter().any(|id| **id == *gpu.id)).map(|(id, _)| *id);
    let mut suiting: Vec<&Gpu> = devices.iter().filter(|gpu| gpu.suits(need)).collect();
    suiting.sort_by_key(|gpu| gpu.memory);
    let free: Vec<&Gpu> = suiting.iter().copied().filter(|gpu| holder(gpu).is_none()).collect();
    if let Some(chosen) = free.get(..need.count as usize) {
        return Ok(chosen.iter().map(|gpu| gpu.id.as_str().into()).collect());
    }
    let taken = suiting.iter().filter_map(|gpu| Some(format!("{} is held by {}", gpu.id, holder(gpu)?)));
    let taken = taken.collect::<Vec<_>>().join(", ");
    Err(format!(
        "needs {} GPU{}, and {} of the {} that suit are free{}{taken}",
        need.count,
        if need.count == 1 { "" } else { "s" },
        free.len(),
        suiting.len(),
        if taken.is_empty() { "" } else { ": " },
    ))
}

#[cfg(test)]
mod tests {
    use berth_spec::ByteSize;

    use super::*;

    fn gpu(id: &str, kind: &str, gib: u64) -> Gpu {
        Gpu { id: id.to_owned(), kind: kind.to_owned(), memory: ByteSize::gib(gib) }
    }

    fn need(count: u32, kind: Option<&str>, gib: Option<u64>) -> GpuNeed {
        GpuNeed { count, kind: kind.map(str::to_owned), memory: gib.map(ByteSize::gib) }
    }

    #[test]
    fn the_smallest_free_devices_that_suit_are_given() {
        let devices = [gpu("a", "nvidia-h200", 141), gpu("b", "nvidia-l4", 24), gpu("c", "nvidia-l4", 24)];
        let other: RevisionId = "m@000000000000".parse().expect("a revision");
        let b: [Arc<str>; 1] = ["b".into()];
        let given =
            |need: &GpuNeed, held: &[AssignedDevices<'_>]| assign(&devices, need, held).map(|ids| ids.join(","));
        assert_eq!(given(&need(1, None, None), &[]).as_deref(), Ok("b"));
        assert_eq!(given(&need(1, None, None), &[(&other, &b)]).as_deref(), Ok("c"));
        assert_eq!(given(&need(2, None, None), &[(&other, &b)]).as_deref(), Ok("c,a"));
        assert_eq!(given(&need(1, Some("h200"), None), &[]).as_deref(), Ok("a"));
        assert_eq!(given(&need(1, None, Some(80)), &[]).as_deref(), Ok("a"));
        let refused = given(&need(2, Some("l4"), None), &[(&other, &b)]).expect_err("one is left");
        assert_eq!(refused, "needs 2 GPUs, and 1 of the 2 that suit are free: b is held by m@000000000000");
    }
}
