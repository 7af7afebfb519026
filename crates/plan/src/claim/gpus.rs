//! GPUs that are left. Each is claimed whole; needs differ in kind and memory, devices too.
//!
//! Needs that name a kind are served first (the one with the fewest devices of it before others: `t4` before `nvidia`), then
//! the rest, each in the order of the memory that they ask for; each takes the smallest devices that will do. Among needs
//! of one kind the sets of devices that will do contain each other, so this finds a way whenever there is one (as for jobs
//! with nested machine sets), and it leaves the largest devices.

use berth_spec::{Gpu, deployment::GpuNeed};

use super::cores::suits;

/// Counts the devices that suit `need`, claimed or not.
pub(crate) fn suiting(devices: &[Gpu], need: &GpuNeed) -> u32 {
    count(devices.iter().filter(|device| suits(device, need)).count())
}

/// Counts the devices that suit `need` and are left when all of `held` have theirs.
pub(crate) fn spare<'a>(devices: &[Gpu], held: impl IntoIterator<Item = &'a GpuNeed>, need: &GpuNeed) -> u32 {
    let held: Vec<&GpuNeed> = held.into_iter().collect();
    let most = suiting(devices, need);
    let fits = |more: &u32| {
        let asked = GpuNeed { count: *more, ..need.clone() };
        serves(devices, held.iter().copied().chain([&asked]))
    };
    (1..=most).rev().find(fits).unwrap_or(0)
}

/// Returns true if every need can have its devices at once.
pub(crate) fn serves<'a>(devices: &[Gpu], needs: impl IntoIterator<Item = &'a GpuNeed>) -> bool {
    let mut needs: Vec<&GpuNeed> = needs.into_iter().collect();
    let of_kind = |kind: &String| devices.iter().filter(|device| device.is_a(kind)).count();
    needs.sort_by_key(|need| (need.kind.is_none(), need.kind.as_ref().map(of_kind), std::cmp::Reverse(need.memory)));
    let mut left: Vec<&Gpu> = devices.iter().collect();
    left.sort_by_key(|device| device.memory);
    needs.into_iter().all(|need| {
        (0..need.count).all(|_| match left.iter().position(|device| suits(device, need)) {
            Some(smallest) => {
                left.remove(smallest);
                true
            }
            None => false,
        })
    })
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use berth_spec::ByteSize;
    use proptest::prelude::*;

    use super::*;

    fn device(kind: u8, memory: u8) -> Gpu {
        Gpu { id: String::new(), kind: format!("k{kind}"), memory: ByteSize::gib(memory.into()) }
    }

    fn need(count: u32, kind: Option<u8>, memory: Option<u8>) -> GpuNeed {
        let memory = memory.map(|memory| ByteSize::gib(memory.into()));
        GpuNeed { count, kind: kind.map(|kind| format!("k{kind}")), memory }
    }

    #[test]
    fn devices_are_claimed_whole_and_the_smallest_that_do_go_first() {
        let devices = [device(0, 80), device(0, 24), device(1, 24)];
        let small = need(1, None, Some(16));
        assert_eq!(spare(&devices, [], &small), 3);
        assert_eq!(spare(&devices, [&small, &small], &need(1, Some(0), Some(40))), 1, "the large one is left");
        assert_eq!(spare(&devices, [&need(1, Some(1), None)], &need(1, Some(1), None)), 0);
        assert_eq!(spare(&devices, [&need(2, Some(0), None)], &small), 1);
        assert_eq!(suiting(&devices, &need(1, Some(2), None)), 0);
    }

    /// Tries every way.
    fn served(devices: &mut Vec<Gpu>, needs: &[GpuNeed]) -> bool {
        let Some((first, rest)) = needs.split_first() else { return true };
        if first.count == 0 {
            return served(devices, rest);
        }
        let less = GpuNeed { count: first.count - 1, ..first.clone() };
        let rest: Vec<GpuNeed> = std::iter::once(less).chain(rest.iter().cloned()).collect();
        (0..devices.len()).any(|at| {
            let device = devices.remove(at);
            let works = suits(&device, first) && served(devices, &rest);
            devices.insert(at, device);
            works
        })
    }

    proptest! {
        #[test]
        fn a_way_is_found_whenever_there_is_one(
            devices in prop::collection::vec((0_u8..2, 1_u8..4), 0..5),
            needs in prop::collection::vec((1_u32..3, prop::option::of(0_u8..2), prop::option::of(1_u8..4)), 0..4),
        ) {
            let mut devices: Vec<Gpu> = devices.into_iter().map(|(kind, memory)| device(kind, memory)).collect();
            let needs: Vec<GpuNeed> = needs.into_iter().map(|(n, kind, memory)| need(n, kind, memory)).collect();
            prop_assert_eq!(serves(&devices, &needs), served(&mut devices, &needs));
        }
    }
}
