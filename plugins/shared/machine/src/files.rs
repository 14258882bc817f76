//! Small files of the system.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most bytes of a file that are read: those here have a line or a few.
const MOST: u64 = 64 << 10;

/// A file's text, trimmed; `None` for one that is missing, can't be read, is empty or is no text.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path)
        .ok()?
        .take(MOST)
        .read_to_string(&mut text)
        .ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// A decimal number, or a hexadecimal one after `0x`.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    parse(&text(path)?)
}

pub(crate) fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The entries of a folder whose names are `prefix` and a number, in the order of the numbers.
pub(crate) fn numbered(folder: &Path, prefix: &str) -> Vec<(u64, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let digits = name.to_str()?.strip_prefix(prefix)?;
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            Some((digits.parse().ok().filter(|_| plain)?, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// The value of `key` in lines of `key<separator>value`.
pub(crate) fn value<'t>(text: &'t str, key: &str, separator: char) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// A graphics card as the kernel lists it.
pub(crate) struct Card {
    /// `…/device`, the PCI device's folder.
    pub(crate) device: PathBuf,
    /// `…/cardN`.
    pub(crate) folder: PathBuf,
    pub(crate) pci: String,
    pub(crate) driver: String,
    pub(crate) device_id: Option<u64>,
}

/// The cards of a PCI vendor, by their addresses.
pub(crate) fn cards(root: &Path, vendor: u64) -> Vec<Card> {
    let mut cards: Vec<Card> = numbered(&root.join("sys/class/drm"), "card")
        .into_iter()
        .filter_map(|(_, folder)| {
            let device = folder.join("device");
            if number(device.join("vendor")) != Some(vendor) {
                return None;
            }
            let events = text(device.join("uevent")).unwrap_or_default();
            let pci = match value(&events, "PCI_SLOT_NAME", '=') {
                Some(pci) => pci.to_owned(),
                // The folder is a link to the device's place on the bus.
                None => {
                    let place = device.canonicalize().ok()?;
                    let name = place.file_name()?.to_str()?;
                    (name.contains(':') && name.contains('.')).then(|| name.to_owned())?
                }
            };
            Some(Card {
                pci: pci.to_ascii_lowercase(),
                driver: value(&events, "DRIVER", '=')
                    .unwrap_or("unknown")
                    .to_owned(),
                device_id: number(device.join("device")),
                device,
                folder,
            })
        })
        .collect();
    cards.sort_by(|a, b| a.pci.cmp(&b.pci));
    cards
}
