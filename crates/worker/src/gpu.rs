//! The GPUs of this machine: found once through NVML, then looked at with the load.
//!
//! ```text
//! libnvidia-ml.so.1 ──dlopen──▶ Nvml ──▶ devices: UUID, name, memory      absent: no GPUs, said once
//!                                  └───▶ load: memory in use, utilisation  every two seconds
//! ```
//! The plan counts devices; the agent gives particular ones to each replica ([`assign`]).

mod assign;
mod nvml;

use std::path::Path;

use berth_spec::{Gpu, GpuLoad};

use self::nvml::Nvml;
pub use self::{
    assign::{AssignedDevices, assign},
    nvml::NvmlError,
};

/// The file that the dynamic linker finds where the driver is installed.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The GPUs of this machine, with NVML to read their load; empty without a driver.
#[derive(Default)]
pub struct Gpus {
    nvml: Option<Nvml>,
    devices: Vec<Gpu>,
}

impl Gpus {
    /// Finds the GPUs that NVML knows. A machine without the library has none, which is logged once; a library that does
    /// not work is an error only where it was named by a setting.
    pub fn find(library: Option<&Path>) -> Result<Self, NvmlError> {
        let nvml = match (Nvml::open(library.unwrap_or(Path::new(LIBRARY))), library) {
            (Ok(nvml), _) => nvml,
            (Err(error), None) => {
                tracing::info!(event = "no_gpus", reason = %error);
                return Ok(Self::default());
            }
            (Err(error), Some(_)) => return Err(error),
        };
        let devices = nvml.devices()?;
        for gpu in &devices {
            tracing::info!(event = "gpu_found", id = gpu.id, kind = gpu.kind, memory = %gpu.memory);
        }
        Ok(Self { nvml: Some(nvml), devices })
    }

    /// The devices in NVML's order, as they were at the start of the worker.
    #[must_use]
    pub fn devices(&self) -> &[Gpu] {
        &self.devices
    }

    /// The load of each device. Takes some microseconds for each; a device that does not answer is left out.
    #[must_use]
    pub fn load(&self) -> Vec<GpuLoad> {
        self.nvml.iter().flat_map(Nvml::load).collect()
    }
}
