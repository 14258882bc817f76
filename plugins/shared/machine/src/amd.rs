//! AMD's processors: `amdgpu` in sysfs, and the compute nodes of the kernel's `kfd`.

use crate::Gpu;
use crate::files::{self, cards, number, numbered, text, value};
use std::path::Path;

const VENDOR: u64 = 0x1002;

/// A compute node of `kfd`.
struct Node {
    /// Its number for ROCm: its place among the nodes that compute.
    index: usize,
    pci: Option<String>,
    unique_id: Option<u64>,
    /// Whether it has processor cores too: then it is one with the processor.
    has_cores: bool,
    gfx: Option<String>,
    name: Option<String>,
}

/// The AMD graphics processors, by PCI address.
pub fn amd(root: &Path) -> Vec<Gpu> {
    let nodes = nodes(root);
    let mut gpus: Vec<Gpu> = cards(root, VENDOR)
        .into_iter()
        .map(|card| {
            let node = nodes
                .iter()
                .find(|node| node.pci.as_deref() == Some(&*card.pci));
            let unique_id = node.and_then(|node| node.unique_id).or_else(|| {
                let text = text(card.device.join("unique_id"))?;
                u64::from_str_radix(&text, 16).ok()
            });
            let product = text(card.device.join("product_name"));
            let memory_total = number(card.device.join("mem_info_vram_total"));
            let mut gpu = Gpu {
                uuid: unique_id
                    .filter(|&id| id != 0)
                    .map(|id| format!("GPU-{id:016x}")),
                name: product.unwrap_or_else(|| {
                    let id = card
                        .device_id
                        .map(|id| format!(" {id:04x}"))
                        .unwrap_or_default();
                    match node.and_then(|node| node.name.as_deref()) {
                        Some(name) => format!("AMD {name}{id}"),
                        None => format!("AMD graphics{id}"),
                    }
                }),
                integrated: node.is_some_and(|node| node.has_cores),
                driver: card.driver,
                memory_used: number(card.device.join("mem_info_vram_used"))
                    .filter(|_| memory_total.is_some()),
                memory_total,
                index: node.map(|node| node.index),
                pci: card.pci,
                ..Gpu::default()
            };
            if let Some(gfx) = node.and_then(|node| node.gfx.clone()) {
                gpu.details.insert("architecture".into(), gfx);
            }
            if let Some(bytes) = number(card.device.join("mem_info_gtt_total")) {
                gpu.details
                    .insert("shared_memory".into(), bytes.to_string());
            }
            gpu
        })
        .collect();
    if let Some(version) = text(root.join("sys/module/amdgpu/version")) {
        for gpu in &mut gpus {
            gpu.driver += &format!(" {version}");
        }
    }
    gpus
}

fn nodes(root: &Path) -> Vec<Node> {
    let mut index = 0;
    numbered(&root.join("sys/class/kfd/kfd/topology/nodes"), "")
        .into_iter()
        .filter_map(|(_, folder)| {
            let properties = text(folder.join("properties"))?;
            let number = |key: &str| value(&properties, key, ' ').and_then(files::parse);
            // A node of the processor alone computes nothing for us.
            if number("simd_count").unwrap_or(0) == 0 {
                return None;
            }
            let location = number("location_id");
            let domain = number("domain").unwrap_or(0);
            let node = Node {
                index,
                // Bus, device and function in 16 bits.
                pci: location.map(|at| {
                    format!(
                        "{domain:04x}:{:02x}:{:02x}.{:x}",
                        at >> 8 & 0xff,
                        at >> 3 & 0x1f,
                        at & 7
                    )
                }),
                unique_id: number("unique_id"),
                has_cores: number("cpu_cores_count").unwrap_or(0) > 0,
                gfx: number("gfx_target_version").map(gfx),
                name: text(folder.join("name")),
            };
            index += 1;
            Some(node)
        })
        .collect()
}

/// `110001` is `gfx1101`: two digits of major, two of minor and two of stepping, the last two in hexadecimal.
fn gfx(version: u64) -> String {
    let (major, minor, stepping) = (version / 10_000, version / 100 % 100, version % 100);
    format!("gfx{major}{minor:x}{stepping:x}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn architectures_are_named() {
        assert_eq!(super::gfx(110_001), "gfx1101");
        assert_eq!(super::gfx(90_010), "gfx90a");
        assert_eq!(super::gfx(100_300), "gfx1030");
    }
}
