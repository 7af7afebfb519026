//! Limits of a runtime, as it reports them when it is ready, within bounds.

use std::{collections::BTreeMap, time::Duration};

use berth_wire::mmesh::RuntimeStatusResponse;

use super::{Reserve, methods::Methods};

/// The size of a model of which nothing is known, where the runtime does not say: ModelMesh's.
const DEFAULT_SIZE: u64 = 1 << 20;

/// The time limit of a load where the runtime does not say: large models are read from disk in minutes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Loads at once where the runtime does not say: one is always right.
const DEFAULT_LOADS: usize = 1;

/// The most loads at once, whatever the runtime says: each has a thread of the worker's.
const MOST_LOADS: usize = 64;

/// The limits of a runtime as it told them at its start, with defaults where it said nothing.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Memory that models may take, in bytes; 0: it does not say.
    pub(super) capacity: u64,
    pub(super) loads: usize,
    pub(super) load_timeout: Duration,
    pub(super) default_size: u64,
    pub(super) version: String,
    pub(super) limits_concurrency: bool,
    pub(super) methods: Methods,
}

impl Limits {
    /// The part of the capacity, in bytes, that is kept for models that are being unloaded.
    pub(super) fn reserve(&self, reserve: Reserve) -> u64 {
        match reserve {
            Reserve::None => 0,
            Reserve::Bytes(bytes) => bytes.0.min(self.capacity / 2),
            Reserve::ByLoads => {
                let share = if self.loads <= 2 { 2 } else { 4 };
                let for_loads = self.default_size.saturating_mul(self.loads as u64) / share;
                for_loads.clamp(self.capacity / 100, self.capacity / 10)
            }
        }
    }

    pub(super) fn of(status: RuntimeStatusResponse) -> Self {
        let known = |value: u64, otherwise: u64| if value == 0 { otherwise } else { value };
        let timeout = u64::from(status.model_loading_timeout_ms);
        let paths: BTreeMap<String, Vec<u32>> =
            status.method_infos.into_iter().map(|(method, info)| (method, info.id_injection_path)).collect();
        Self {
            capacity: status.capacity_in_bytes,
            loads: match status.max_loading_concurrency {
                0 => DEFAULT_LOADS,
                loads => usize::try_from(loads).unwrap_or(MOST_LOADS).min(MOST_LOADS),
            },
            load_timeout: if timeout == 0 { DEFAULT_TIMEOUT } else { Duration::from_millis(timeout.max(100)) },
            default_size: known(status.default_model_size_in_bytes, DEFAULT_SIZE),
            version: status.runtime_version,
            limits_concurrency: status.limit_model_concurrency,
            methods: Methods::new(paths, status.allow_any_method),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_modelmeshs() {
        let of = |loads, default_size, capacity| {
            let status = RuntimeStatusResponse {
                max_loading_concurrency: loads,
                default_model_size_in_bytes: default_size,
                capacity_in_bytes: capacity,
                ..RuntimeStatusResponse::default()
            };
            Limits::of(status).reserve(Reserve::ByLoads)
        };
        const MIB: u64 = 1 << 20;
        assert_eq!(of(6, 50 * MIB, 1024 * MIB), 75 * MIB);
        assert_eq!(of(1, MIB, 1000 * MIB), 10 * MIB, "at least a hundredth");
        assert_eq!(of(8, 500 * MIB, 1000 * MIB), 100 * MIB, "at most a tenth");
    }
}
