//! NVIDIA's management library, opened when asked for: memory of a device.
//!
//! The functions and their types are those of `nvml.h` (NVML API reference, "Device Queries"), unchanged since version 2 of
//! the names used here.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};

const SUCCESS: c_int = 0;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// Why the library can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NvmlError {
    /// It is not there, or lacks a function.
    Library(String),
    /// A function gave this error.
    Code(i32),
}

impl std::fmt::Display for NvmlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(what) => f.write_str(what),
            Self::Code(code) => write!(f, "NVML error {code}"),
        }
    }
}

impl std::error::Error for NvmlError {}

/// The library, initialised.
#[derive(Debug)]
pub struct Nvml {
    library: Library,
}

impl Nvml {
    /// Opens and initialises it; `path` is `libnvidia-ml.so.1` but in tests.
    ///
    /// # Errors
    /// It is not there, or does not start.
    pub fn open(path: &std::ffi::OsStr) -> Result<Self, NvmlError> {
        // SAFETY: the library is the driver's own, or one that the caller names; its initialisers run as those of any
        // library that a program links to.
        let library =
            unsafe { Library::new(path) }.map_err(|error| NvmlError::Library(error.to_string()))?;
        let nvml = Self { library };
        // SAFETY: the function has this type in nvml.h.
        let init: Symbol<'_, unsafe extern "C" fn() -> c_int> =
            unsafe { nvml.function(b"nvmlInit_v2\0") }?;
        // SAFETY: it may be called at any time, and takes nothing.
        check(unsafe { init() })?;
        Ok(nvml)
    }

    /// Bytes in total and in use, of the device at a PCI address.
    ///
    /// # Errors
    /// There is none, or it can't be read.
    pub fn memory(&self, pci: &str) -> Result<(u64, u64), NvmlError> {
        type Handle = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
        type GetMemory = unsafe extern "C" fn(*mut c_void, *mut Memory) -> c_int;
        let pci = CString::new(pci).map_err(|error| NvmlError::Library(error.to_string()))?;
        // SAFETY: both functions have these types in nvml.h.
        let (handle, memory): (Symbol<'_, Handle>, Symbol<'_, GetMemory>) = unsafe {
            (
                self.function(b"nvmlDeviceGetHandleByPciBusId_v2\0")?,
                self.function(b"nvmlDeviceGetMemoryInfo\0")?,
            )
        };
        let mut device = std::ptr::null_mut();
        // SAFETY: the library is initialised; the text ends with a zero, and the handle's place is writable.
        check(unsafe { handle(pci.as_ptr(), &raw mut device) })?;
        let mut found = Memory::default();
        // SAFETY: the handle was just given by the library; the struct has the layout that it writes.
        check(unsafe { memory(device, &raw mut found) })?;
        Ok((found.total, found.used.min(found.total)))
    }

    /// # Safety
    /// `T` must be the function's type.
    unsafe fn function<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>, NvmlError> {
        // SAFETY: promised by the caller.
        unsafe { self.library.get(name) }.map_err(|error| NvmlError::Library(error.to_string()))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the function has this type in nvml.h.
        let shutdown =
            unsafe { self.function::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown\0") };
        if let Ok(shutdown) = shutdown {
            // SAFETY: undoes the one initialisation of `open`; no handle outlives this.
            unsafe { shutdown() };
        }
    }
}

fn check(code: c_int) -> Result<(), NvmlError> {
    if code == SUCCESS {
        Ok(())
    } else {
        Err(NvmlError::Code(code))
    }
}
