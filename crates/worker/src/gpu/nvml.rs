//! NVIDIA's management library (NVML), loaded at run time: the seven functions of its C interface that are needed.
//!
//! <https://docs.nvidia.com/deploy/nvml-api/>
#![expect(unsafe_code, reason = "calls a C library that is loaded at run time; each block says why it is sound")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::Path,
};

use berth_spec::{ByteSize, Gpu, GpuLoad};
use libloading::{Library, Symbol};

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;
/// Longer than `NVML_DEVICE_NAME_V2_BUFFER_SIZE` and `NVML_DEVICE_UUID_V2_BUFFER_SIZE`, which are 96.
const TEXT: usize = 128;
/// More devices than any machine has: a broken library must not fill memory.
const MAX_DEVICES: c_uint = 256;

/// `nvmlDevice_t`.
type Device = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

type Plain = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type Text = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
type MemoryInfo = unsafe extern "C" fn(Device, *mut Memory) -> c_int;
type Rates = unsafe extern "C" fn(Device, *mut Utilization) -> c_int;

/// The library is missing or does not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library cannot be loaded.
    #[error(
        "the NVIDIA driver's library cannot be loaded ({0}): install the driver, or name the library (--nvml-library)"
    )]
    Missing(String),
    /// The library lacks a function.
    #[error("the NVIDIA driver's library lacks the function {0}: update the driver")]
    Function(&'static str),
    /// A call failed.
    #[error("the NVIDIA driver answered {function} with error {code}: see `nvidia-smi`")]
    Call {
        /// The function.
        function: &'static str,
        /// NVML's number.
        code: i32,
    },
}

/// The library, initialised.
pub(super) struct Nvml {
    library: Library,
}

impl Nvml {
    /// Loads and initialises it.
    pub(super) fn open(path: &Path) -> Result<Self, NvmlError> {
        // SAFETY: the initialisers of NVIDIA's library, or of one that an operator named, are run once; they have no
        // preconditions.
        let library = unsafe { Library::new(path) }.map_err(|error| NvmlError::Missing(error.to_string()))?;
        // Before it is initialised: dropping it shuts it down.
        let function: Symbol<'_, Plain> = symbol(&library, "nvmlInit_v2")?;
        // SAFETY: takes nothing; may be called at any time.
        check("nvmlInit_v2", unsafe { function() })?;
        Ok(Self { library })
    }

    /// Every device, in the order of the driver.
    pub(super) fn devices(&self) -> Result<Vec<Gpu>, NvmlError> {
        let each = self.handles()?.into_iter().map(|device| {
            Ok(Gpu {
                id: self.text("nvmlDeviceGetUUID", device)?,
                kind: kind(&self.text("nvmlDeviceGetName", device)?),
                memory: ByteSize(self.memory(device)?.total),
            })
        });
        each.collect()
    }

    /// The load of each device that answers.
    pub(super) fn load(&self) -> Vec<GpuLoad> {
        let of = |device| {
            Some(GpuLoad {
                id: self.text("nvmlDeviceGetUUID", device).ok()?.into(),
                memory_used: ByteSize(self.memory(device).ok()?.used),
                // Devices that are shared between virtual machines do not tell.
                utilization_percent: self.utilization(device).unwrap_or_default(),
            })
        };
        self.handles().unwrap_or_default().into_iter().filter_map(of).collect()
    }

    fn handles(&self) -> Result<Vec<Device>, NvmlError> {
        let count_of: Symbol<'_, Count> = symbol(&self.library, "nvmlDeviceGetCount_v2")?;
        let by_index: Symbol<'_, ByIndex> = symbol(&self.library, "nvmlDeviceGetHandleByIndex_v2")?;
        let mut count = 0;
        // SAFETY: writes one number to the place it is given.
        check("nvmlDeviceGetCount_v2", unsafe { count_of(&raw mut count) })?;
        let handle = |index| {
            let mut device: Device = std::ptr::null_mut();
            // SAFETY: writes one handle to the place it is given; the handle is good until the library is shut down.
            check("nvmlDeviceGetHandleByIndex_v2", unsafe { by_index(index, &raw mut device) }).map(|()| device)
        };
        (0..count.min(MAX_DEVICES)).map(handle).collect()
    }

    fn text(&self, name: &'static str, device: Device) -> Result<String, NvmlError> {
        let function: Symbol<'_, Text> = symbol(&self.library, name)?;
        let mut buffer: [c_char; TEXT] = [0; TEXT];
        // SAFETY: `device` is of this library; it writes at most as many bytes as it is told, the last being 0.
        check(name, unsafe { function(device, buffer.as_mut_ptr(), TEXT as c_uint - 1) })?;
        // SAFETY: the last byte of the buffer is 0, whatever was written before it.
        Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn memory(&self, device: Device) -> Result<Memory, NvmlError> {
        let function: Symbol<'_, MemoryInfo> = symbol(&self.library, "nvmlDeviceGetMemoryInfo")?;
        let mut memory = Memory::default();
        // SAFETY: `device` is of this library; it writes one `nvmlMemory_t`.
        check("nvmlDeviceGetMemoryInfo", unsafe { function(device, &raw mut memory) })?;
        Ok(memory)
    }

    fn utilization(&self, device: Device) -> Result<u32, NvmlError> {
        let function: Symbol<'_, Rates> = symbol(&self.library, "nvmlDeviceGetUtilizationRates")?;
        let mut rates = Utilization::default();
        // SAFETY: `device` is of this library; it writes one `nvmlUtilization_t`.
        check("nvmlDeviceGetUtilizationRates", unsafe { function(device, &raw mut rates) })?;
        Ok(rates.gpu)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(function) = symbol::<Plain>(&self.library, "nvmlShutdown") {
            // SAFETY: it was initialised, and no handle is used any more.
            unsafe { function() };
        }
    }
}

/// A function of the library. `T` must be its type in NVIDIA's header.
fn symbol<'l, T>(library: &'l Library, name: &'static str) -> Result<Symbol<'l, T>, NvmlError> {
    // SAFETY: the callers name types as NVIDIA's header has them; that interface is stable.
    unsafe { library.get(name.as_bytes()) }.map_err(|_| NvmlError::Function(name))
}

fn check(function: &'static str, code: c_int) -> Result<(), NvmlError> {
    if code == SUCCESS { Ok(()) } else { Err(NvmlError::Call { function, code }) }
}

/// `NVIDIA H200` as `nvidia-h200`.
fn kind(name: &str) -> String {
    name.to_ascii_lowercase()
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_names_in_lower_case() {
        for (name, expected) in [
            ("NVIDIA H200", "nvidia-h200"),
            ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
            ("Tesla T4", "tesla-t4"),
        ] {
            assert_eq!(kind(name), expected);
        }
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_the_setting() {
        let error = Nvml::open(Path::new("/nowhere/libnvidia-ml.so.1")).err().expect("nothing is there");
        assert!(error.to_string().contains("--nvml-library"), "{error}");
    }
}
