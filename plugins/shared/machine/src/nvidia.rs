//! NVIDIA's processors: the driver's files under `/proc`, and memory by NVML.

use crate::Gpu;
use crate::files::{text, value};
use crate::nvml::Nvml;
use std::path::Path;

/// The NVIDIA graphics processors, by PCI address; with memory where `nvml` is there.
pub fn nvidia(root: &Path, nvml: Option<&Nvml>) -> Vec<Gpu> {
    let folder = root.join("proc/driver/nvidia");
    let driver = text(folder.join("version"))
        .and_then(|text| version(&text))
        .map_or_else(|| "nvidia".into(), |version| format!("nvidia {version}"));
    let entries = std::fs::read_dir(folder.join("gpus"))
        .into_iter()
        .flatten()
        .flatten();
    let mut gpus: Vec<Gpu> = entries
        .map(|entry| {
            let information = text(entry.path().join("information")).unwrap_or_default();
            let field =
                |key: &str| value(&information, key, ':').filter(|value| !value.contains('?'));
            let pci = entry.file_name().to_string_lossy().to_ascii_lowercase();
            let memory = nvml.and_then(|nvml| nvml.memory(&pci).ok());
            Gpu {
                uuid: field("GPU UUID").map(str::to_owned),
                name: field("Model").unwrap_or("NVIDIA graphics").to_owned(),
                // Those of NVIDIA that share memory (Tegra) are not on the bus.
                integrated: false,
                driver: driver.clone(),
                memory_total: memory.map(|(total, _)| total),
                memory_used: memory.map(|(_, used)| used),
                pci,
                ..Gpu::default()
            }
        })
        .collect();
    gpus.sort_by(|a, b| a.pci.cmp(&b.pci));
    for (index, gpu) in gpus.iter_mut().enumerate() {
        gpu.index = Some(index);
    }
    gpus
}

/// The first word that looks like a version, of `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu …`.
fn version(text: &str) -> Option<String> {
    let looks = |word: &&str| {
        let digits = word
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
        digits && word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit())
    };
    text.lines()
        .next()?
        .split_whitespace()
        .find(looks)
        .map(str::to_owned)
}
