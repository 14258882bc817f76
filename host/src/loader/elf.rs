//! Headers of an ELF module (System V ABI, "Object Files"): this machine's class, byte order and processor, a shared
//! object, and every segment that is mapped, and the section header table, lie within the file. A mapped page past the end of a file is a bus error.

use super::preflight::{INSTALL_AGAIN, OTHER_BUILD, Refusal, Source, truncated};
use std::io::{Read, Seek};

pub(super) const MAGIC: &[u8] = b"\x7fELF";

/// `e_machine` and its name.
const MACHINES: &[(u16, &str)] = &[
    (3, "x86"),
    (8, "MIPS"),
    (20, "PowerPC"),
    (21, "PowerPC64"),
    (22, "S390x"),
    (40, "Arm"),
    (62, "x86-64"),
    (183, "AArch64"),
    (224, "AMD GPU"),
    (243, "RISC-V"),
    (258, "LoongArch"),
];

/// This machine's `e_machine`; `None` where it is not in the table, and any is let through.
const OURS: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else if cfg!(target_arch = "x86") {
    Some(3)
} else if cfg!(target_arch = "arm") {
    Some(40)
} else if cfg!(any(target_arch = "riscv64", target_arch = "riscv32")) {
    Some(243)
} else if cfg!(target_arch = "s390x") {
    Some(22)
} else if cfg!(target_arch = "powerpc64") {
    Some(21)
} else if cfg!(target_arch = "loongarch64") {
    Some(258)
} else {
    None
};

/// Numbers of a header, in its byte order.
struct Fields<'a> {
    bytes: &'a [u8],
    little: bool,
    wide: bool,
}

impl Fields<'_> {
    /// A number of `N` bytes at `at`; 0 past the end, which callers exclude by the size they read.
    fn number<const N: usize>(&self, at: usize) -> u64 {
        let Some(bytes) = self.bytes.get(at..at + N) else {
            return 0;
        };
        let step = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
        if self.little {
            bytes.iter().rev().fold(0, step)
        } else {
            bytes.iter().fold(0, step)
        }
    }

    fn half(&self, at: usize) -> u16 {
        self.number::<2>(at) as u16
    }

    /// An address or offset: 8 bytes at `wide`, or 4 at `narrow`.
    fn word(&self, wide: usize, narrow: usize) -> u64 {
        if self.wide {
            self.number::<8>(wide)
        } else {
            self.number::<4>(narrow)
        }
    }
}

fn machine_name(machine: u16) -> String {
    MACHINES
        .iter()
        .find(|(number, _)| *number == machine)
        .map_or_else(
            || format!("processor {machine}"),
            |(_, name)| (*name).to_owned(),
        )
}

pub(super) fn check<R: Read + Seek>(source: &mut Source<R>) -> Result<(), Refusal> {
    const TYPE_SHARED: u16 = 3;
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;

    let ident = source.read_exact(0, 16, "the ELF header")?;
    let wide = match ident[4] {
        1 => false,
        2 => true,
        other => {
            return Err(Refusal::new(
                format!("ELF class {other}; expected 1 or 2"),
                INSTALL_AGAIN,
            ));
        }
    };
    let little = match ident[5] {
        1 => true,
        2 => false,
        other => {
            return Err(Refusal::new(
                format!("ELF byte order {other}; expected 1 or 2"),
                INSTALL_AGAIN,
            ));
        }
    };
    let bytes = source.read_exact(0, if wide { 64 } else { 52 }, "the ELF header")?;
    let header = Fields {
        bytes: &bytes,
        little,
        wide,
    };

    // The processor first: it says more than class and byte order do.
    let machine = header.half(18);
    if let Some(ours) = OURS.filter(|ours| *ours != machine) {
        return Err(Refusal::new(
            format!(
                "built for {}; this machine is {}",
                machine_name(machine),
                machine_name(ours)
            ),
            OTHER_BUILD,
        ));
    }
    if wide != cfg!(target_pointer_width = "64") {
        let (theirs, ours) = if wide { (64, 32) } else { (32, 64) };
        return Err(Refusal::new(
            format!("a {theirs}-bit module; this is a {ours}-bit program"),
            OTHER_BUILD,
        ));
    }
    if little != cfg!(target_endian = "little") {
        let (theirs, ours) = if little {
            ("little", "big")
        } else {
            ("big", "little")
        };
        return Err(Refusal::new(
            format!("a {theirs}-endian module; this machine is {ours}-endian"),
            OTHER_BUILD,
        ));
    }
    let kind = header.half(16);
    if kind != TYPE_SHARED {
        let name = match kind {
            1 => "an object file".to_owned(),
            2 => "a program".to_owned(),
            4 => "a core dump".to_owned(),
            other => format!("an ELF file of type {other}"),
        };
        return Err(Refusal::new(
            format!("{name}; expected a shared library"),
            "name a plugin module",
        ));
    }

    let (table, entry, count) = (
        header.word(32, 28),
        header.half(if wide { 54 } else { 42 }),
        header.half(if wide { 56 } else { 44 }),
    );
    let expected = if wide { 56 } else { 32 };
    if entry != expected {
        return Err(Refusal::new(
            format!("program headers of {entry} bytes; expected {expected}"),
            INSTALL_AGAIN,
        ));
    }
    let table_bytes = usize::from(entry) * usize::from(count);
    let end = table
        .checked_add(table_bytes as u64)
        .ok_or_else(|| truncated("the program header table", u64::MAX, source.length))?;
    if end > source.length {
        return Err(truncated("the program header table", end, source.length));
    }
    let bytes = source.read_exact(table, table_bytes, "the program header table")?;
    let mut loads = 0;
    for (index, bytes) in bytes.chunks_exact(usize::from(entry)).enumerate() {
        let segment = Fields {
            bytes,
            little,
            wide,
        };
        let kind = segment.number::<4>(0);
        if kind != LOAD && kind != DYNAMIC {
            continue;
        }
        loads += usize::from(kind == LOAD);
        let (offset, size) = (segment.word(8, 4), segment.word(32, 16));
        let end = offset.saturating_add(size);
        if end > source.length {
            return Err(truncated(&format!("segment {index}"), end, source.length));
        }
    }
    if loads == 0 {
        return Err(Refusal::new("no segment to load", INSTALL_AGAIN));
    }
    // Linkers put the section header table last, so that any cut shows, also one that spares every segment.
    let (table, entry, count) = (
        header.word(40, 32),
        header.half(if wide { 58 } else { 46 }),
        header.half(if wide { 60 } else { 48 }),
    );
    let end = table.saturating_add(u64::from(entry) * u64::from(count));
    if table != 0 && end > source.length {
        return Err(truncated("the section header table", end, source.length));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::loader::preflight::check_bytes;

    const MACHINE: usize = 18;

    /// A shared object for this machine (little-endian, 64-bit) with one segment of all its 256 bytes.
    fn whole() -> Vec<u8> {
        let mut file = vec![0_u8; 256];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16] = 3;
        file[MACHINE..MACHINE + 2].copy_from_slice(&super::OURS.unwrap().to_le_bytes());
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = 1;
        file[64 + 32..64 + 40].copy_from_slice(&256_u64.to_le_bytes());
        file
    }

    fn changed(at: usize, bytes: &[u8]) -> String {
        let mut file = whole();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        check_bytes(&file).unwrap_err()
    }

    #[test]
    fn what_is_wrong_is_named() {
        if cfg!(target_os = "linux") {
            assert_eq!(check_bytes(&whole()), Ok(()));
        }
        let other: u16 = if super::OURS == Some(183) { 62 } else { 183 };
        let name = super::machine_name(other);
        assert!(
            changed(MACHINE, &other.to_le_bytes())
                .starts_with(&format!("built for {name}; this machine is"))
        );
        assert!(changed(MACHINE, &999_u16.to_le_bytes()).starts_with("built for processor 999;"));
        assert_eq!(changed(16, &[2]), "a program; expected a shared library");
        assert_eq!(changed(4, &[7]), "ELF class 7; expected 1 or 2");
        assert_eq!(changed(5, &[0]), "ELF byte order 0; expected 1 or 2");
        assert_eq!(
            changed(54, &[57]),
            "program headers of 57 bytes; expected 56"
        );
        assert_eq!(changed(56, &[0]), "no segment to load");
        assert_eq!(
            changed(64 + 8, &[1]),
            "truncated: segment 0 ends at byte 257, the file at 256"
        );
        assert!(changed(64 + 8, &[0xff; 8]).starts_with("truncated: segment 0 ends at byte"));
        assert!(changed(40, &[0xff; 8]).starts_with("truncated: the section header table"));
        assert!(changed(32, &[0xff; 8]).starts_with("truncated: the program header table"));
    }

    #[test]
    fn every_cut_is_refused_and_none_panics() {
        let file = whole();
        for length in 4..file.len() {
            assert!(
                check_bytes(&file[..length])
                    .unwrap_err()
                    .starts_with("truncated"),
                "cut at {length}"
            );
        }
    }
}
