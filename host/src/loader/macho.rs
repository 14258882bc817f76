//! Headers of a Mach-O module, thin or fat (Apple, `mach-o/loader.h`, `mach-o/fat.h`): a slice for this processor, a
//! dynamic library or bundle, and every segment within the file.

use super::preflight::{INSTALL_AGAIN, OTHER_BUILD, Refusal, Source, truncated};
use std::io::{Read, Seek};

const THIN_64: [u8; 4] = 0xfeed_facf_u32.to_le_bytes();
const THIN_32: [u8; 4] = 0xfeed_face_u32.to_le_bytes();
const FAT_32: [u8; 4] = 0xcafe_babe_u32.to_be_bytes();
const FAT_64: [u8; 4] = 0xcafe_babf_u32.to_be_bytes();
/// More slices than this is a Java class file, which starts with the same bytes.
const MOST_SLICES: u32 = 30;

const PROCESSORS: &[(u32, &str)] = &[
    (7, "x86"),
    (12, "Arm"),
    (0x0100_0007, "x86-64"),
    (0x0100_000c, "AArch64"),
    (18, "PowerPC"),
];

const OURS: u32 = if cfg!(target_arch = "aarch64") {
    0x0100_000c
} else {
    0x0100_0007
};

fn processor_name(number: u32) -> String {
    PROCESSORS
        .iter()
        .find(|(known, _)| *known == number)
        .map_or_else(
            || format!("processor {number:#x}"),
            |(_, name)| (*name).to_owned(),
        )
}

/// A number of up to 8 bytes; 0 past the end, which callers exclude by the size they read.
fn little(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes
        .get(at..at + size)
        .unwrap_or_default()
        .iter()
        .rev()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

fn big(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes
        .get(at..at + size)
        .unwrap_or_default()
        .iter()
        .fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

/// Whether a file that starts so is Mach-O.
pub(super) fn is(start: &[u8]) -> bool {
    let fat = start.starts_with(&FAT_32) || start.starts_with(&FAT_64);
    let slices = big(start, 4, 4) as u32;
    start.starts_with(&THIN_64)
        || start.starts_with(&THIN_32)
        || (fat && (1..=MOST_SLICES).contains(&slices))
}

pub(super) fn check<R: Read + Seek>(source: &mut Source<R>, start: &[u8]) -> Result<(), Refusal> {
    if start.starts_with(&THIN_32) {
        return Err(Refusal::new(
            "a 32-bit Mach-O file; expected a 64-bit one",
            OTHER_BUILD,
        ));
    }
    if start.starts_with(&THIN_64) {
        let length = source.length;
        return check_thin(source, 0, length);
    }
    let wide = start.starts_with(&FAT_64);
    let entry = if wide { 32 } else { 20 };
    let count = big(start, 4, 4) as usize;
    let table = source.read_exact(8, count * entry, "the table of slices")?;
    let mut others = Vec::new();
    for slice in table.chunks_exact(entry) {
        let processor = big(slice, 0, 4) as u32;
        if processor != OURS {
            others.push(processor_name(processor));
            continue;
        }
        let (offset, size) = if wide {
            (big(slice, 8, 8), big(slice, 16, 8))
        } else {
            (big(slice, 8, 4), big(slice, 12, 4))
        };
        let end = offset.saturating_add(size);
        if end > source.length {
            return Err(truncated("the slice for this machine", end, source.length));
        }
        return check_thin(source, offset, size);
    }
    Err(Refusal::new(
        format!(
            "built for {}; this machine is {}",
            others.join(" and "),
            processor_name(OURS)
        ),
        OTHER_BUILD,
    ))
}

/// A thin file of `length` bytes at `offset`.
fn check_thin<R: Read + Seek>(
    source: &mut Source<R>,
    offset: u64,
    length: u64,
) -> Result<(), Refusal> {
    const HEADER: u64 = 32;
    const SEGMENT_64: u64 = 0x19;
    let header = source.read_exact(offset, HEADER as usize, "the Mach-O header")?;
    if !header.starts_with(&THIN_64) {
        return Err(Refusal::new("a slice that is not Mach-O", INSTALL_AGAIN));
    }
    let processor = little(&header, 4, 4) as u32;
    if processor != OURS {
        return Err(Refusal::new(
            format!(
                "built for {}; this machine is {}",
                processor_name(processor),
                processor_name(OURS)
            ),
            OTHER_BUILD,
        ));
    }
    // MH_DYLIB, MH_BUNDLE.
    let kind = little(&header, 12, 4);
    if kind != 6 && kind != 8 {
        let name = match kind {
            1 => "an object file".to_owned(),
            2 => "a program".to_owned(),
            other => format!("a Mach-O file of type {other}"),
        };
        return Err(Refusal::new(
            format!("{name}; expected a dynamic library"),
            "name a plugin module",
        ));
    }
    let (count, bytes) = (little(&header, 16, 4), little(&header, 20, 4));
    if HEADER + bytes > length {
        return Err(truncated("the load commands", HEADER + bytes, length));
    }
    let commands = source.read_exact(offset + HEADER, bytes as usize, "the load commands")?;
    let mut rest = commands.as_slice();
    for index in 0..count {
        let size = little(rest, 4, 4) as usize;
        if size < 8 || size > rest.len() {
            return Err(Refusal::new(
                format!(
                    "load command {index} of {size} bytes; {} are left",
                    rest.len()
                ),
                INSTALL_AGAIN,
            ));
        }
        if little(rest, 0, 4) == SEGMENT_64 && size >= 56 {
            let end = little(rest, 40, 8).saturating_add(little(rest, 48, 8));
            if end > length {
                return Err(truncated(
                    &format!("the segment of load command {index}"),
                    end,
                    length,
                ));
            }
        }
        rest = &rest[size..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::preflight::check_bytes;

    /// A dynamic library for this processor with one segment of all its 256 bytes.
    fn thin() -> Vec<u8> {
        let mut file = vec![0_u8; 256];
        file[..4].copy_from_slice(&THIN_64);
        file[4..8].copy_from_slice(&OURS.to_le_bytes());
        file[12] = 6;
        file[16] = 1;
        file[20] = 72;
        file[32] = 0x19;
        file[36] = 72;
        file[32 + 48..32 + 56].copy_from_slice(&256_u64.to_le_bytes());
        file
    }

    /// A fat file with one slice.
    fn fat(processor: u32, slice: &[u8]) -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        file[..4].copy_from_slice(&FAT_32);
        file[7] = 1;
        file[8..12].copy_from_slice(&processor.to_be_bytes());
        file[16..20].copy_from_slice(&64_u32.to_be_bytes());
        file[20..24].copy_from_slice(&(slice.len() as u32).to_be_bytes());
        file.extend_from_slice(slice);
        file
    }

    /// What is said of a whole module, on this system.
    fn whole() -> Result<(), String> {
        if cfg!(target_vendor = "apple") {
            Ok(())
        } else {
            Err(format!("a Mach-O module; this is {}", std::env::consts::OS))
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(check_bytes(&thin()), whole());
        assert_eq!(check_bytes(&fat(OURS, &thin())), whole());
        assert!(
            check_bytes(&fat(18, &thin()))
                .unwrap_err()
                .starts_with("built for PowerPC; this machine is")
        );
        let mut file = thin();
        file[12] = 2;
        assert_eq!(
            check_bytes(&file).unwrap_err(),
            "a program; expected a dynamic library"
        );
        let mut file = thin();
        file[36] = 1;
        assert_eq!(
            check_bytes(&file).unwrap_err(),
            "load command 0 of 1 bytes; 72 are left"
        );
        let mut file = thin();
        file[16..20].copy_from_slice(&[0xff; 4]);
        assert!(
            check_bytes(&file)
                .unwrap_err()
                .starts_with("load command 1 of")
        );
    }

    #[test]
    fn every_cut_is_refused_and_none_panics() {
        for file in [thin(), fat(OURS, &thin())] {
            for length in 8..file.len() {
                assert!(
                    check_bytes(&file[..length])
                        .unwrap_err()
                        .starts_with("truncated"),
                    "cut at {length}"
                );
            }
        }
    }
}
