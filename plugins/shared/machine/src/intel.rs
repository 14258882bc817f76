//! Intel's processors: `xe` and `i915` in sysfs.

use crate::Gpu;
use crate::files::{cards, number, text};
use std::path::Path;

const VENDOR: u64 = 0x8086;

/// The Intel graphics processors that have a render node, by PCI address.
pub fn intel(root: &Path) -> Vec<Gpu> {
    cards(root, VENDOR)
        .into_iter()
        .filter(|card| has_render_node(&card.device))
        .enumerate()
        .map(|(index, card)| {
            // i915 tells local memory beside the card, xe for each tile; integrated ones have neither.
            let local = number(card.folder.join("lmem_total_bytes"))
                .or_else(|| number(card.device.join("tile0/physical_vram_size_bytes")))
                .filter(|&bytes| bytes > 0);
            let used = number(card.folder.join("lmem_avail_bytes"))
                .zip(local)
                .map(|(free, total)| total.saturating_sub(free));
            // On the bus of the processor itself: what shares its memory.
            let on_root_bus = card.pci.starts_with("0000:00:");
            Gpu {
                uuid: None,
                name: text(card.device.join("label")).unwrap_or_else(|| match card.device_id {
                    Some(id) => format!("Intel graphics {id:04x}"),
                    None => "Intel graphics".into(),
                }),
                integrated: local.is_none() && on_root_bus,
                driver: card.driver,
                memory_total: local,
                memory_used: used,
                index: Some(index),
                pci: card.pci,
                ..Gpu::default()
            }
        })
        .collect()
}

fn has_render_node(device: &Path) -> bool {
    let nodes = std::fs::read_dir(device.join("drm"))
        .into_iter()
        .flatten()
        .flatten();
    nodes
        .into_iter()
        .any(|node| node.file_name().to_string_lossy().starts_with("renderD"))
}
