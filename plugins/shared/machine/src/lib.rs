//! Which graphics processors this machine has, as the system's files tell it, without any vendor's runtime.
//!
//! Everything is read below a root folder, which is `/` but in tests. Linux only: elsewhere those files are not there, and
//! nothing is found.
//!
//! Invariants:
//! - A device is known by its PCI address or UUID, never by its place in a list; the place is told beside it, for runtimes that
//!   ask for one.
//! - Files that are odd, missing or changing while they are read make a field unknown, never a device wrong.
//! - Free memory is what is left of the total: never negative.

mod amd;
mod files;
mod intel;
mod nvidia;
mod nvml;

pub use amd::amd;
pub use intel::intel;
pub use nvidia::nvidia;
pub use nvml::{Nvml, NvmlError};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders that are looked into for graphics processors.
pub const LOOKED_INTO: &[&str] = &["/sys/class/drm", "/proc/driver/nvidia/gpus"];

/// The root folder below which the system's files are: `/`, unless a test says otherwise.
pub fn root() -> PathBuf {
    std::env::var_os("BACKPLANE_MACHINE_ROOT").map_or_else(|| "/".into(), PathBuf::from)
}

/// The graphics processors of every vendor, those of one vendor by PCI address.
pub fn all(root: &Path, nvml: Option<&Nvml>) -> Vec<Gpu> {
    [amd(root), nvidia(root, nvml), intel(root)].concat()
}

/// A graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// PCI address, such as `0000:03:00.0`.
    pub pci: String,
    /// The vendor's UUID, such as `GPU-5f1c2b6a9d3e4f70`, where it has one.
    pub uuid: Option<String>,
    /// Name for people.
    pub name: String,
    /// Whether it shares the processor's memory.
    pub integrated: bool,
    /// The kernel's driver, with its version where that is told.
    pub driver: String,
    /// Bytes of its own memory.
    pub memory_total: Option<u64>,
    /// Bytes of it in use.
    pub memory_used: Option<u64>,
    /// Its number for the vendor's runtime.
    pub index: Option<usize>,
    /// Further facts, for people.
    pub details: BTreeMap<String, String>,
}

impl Gpu {
    /// The name that it is chosen by: its UUID, else its PCI address.
    pub fn id(&self) -> &str {
        self.uuid.as_deref().unwrap_or(&self.pci)
    }

    /// Bytes that are free; `None` where total or use is not known.
    pub fn memory_free(&self) -> Option<u64> {
        Some(self.memory_total?.saturating_sub(self.memory_used?))
    }
}

/// The one to use where nobody names one: of the discrete ones that with the most memory, else of the integrated ones. Of
/// equals the first.
pub fn preferred(gpus: &[Gpu]) -> Option<&Gpu> {
    let memory = |gpu: &&Gpu| (!gpu.integrated, gpu.memory_total.unwrap_or(0));
    gpus.iter().rev().max_by_key(memory)
}

/// The one of this UUID or PCI address, in any case, with or without the domain.
pub fn find<'a>(gpus: &'a [Gpu], id: &str) -> Option<&'a Gpu> {
    let same = |own: &str| own.eq_ignore_ascii_case(id);
    gpus.iter().find(|gpu| {
        let short = gpu.pci.strip_prefix("0000:").unwrap_or(&gpu.pci);
        gpu.uuid.as_deref().is_some_and(same) || same(&gpu.pci) || same(short)
    })
}
