//! What a module file says of itself, read from the file: none of its code runs.

use object::elf::{DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::ElfFile;
use object::read::{ReadCache, ReadRef};
use object::{Endianness, File, Object, ObjectSymbol};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Symbols that are listed; a module that exports more is no usual one.
const MOST_SYMBOLS: usize = 10_000;
/// Bytes of a name that are kept.
const LONGEST_NAME: usize = 512;

/// By which door a module is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Door {
    /// The root module of the contract in Rust.
    Rust,
    /// The function of the C header.
    C,
}

impl Door {
    /// For people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Rust => "root module (Rust)",
            Self::C => "C door",
        }
    }
}

/// What a module file says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ModuleFile {
    /// `ELF` or `Mach-O`.
    pub(crate) format: String,
    /// The processor that it is for.
    pub(crate) architecture: String,
    /// Bytes.
    pub(crate) size: u64,
    /// The linker's identity of the build, in hexadecimal.
    pub(crate) build_id: Option<String>,
    /// By which door it is opened; `None` where it has neither symbol, and is no plugin.
    pub(crate) door: Option<Door>,
    /// Names of the symbols that it exports, in order.
    pub(crate) exported: Vec<String>,
    /// Libraries that it needs, by the names that it gives them.
    pub(crate) needed: Vec<String>,
    /// Folders in which it has its libraries looked for (`DT_RUNPATH`, `DT_RPATH`).
    pub(crate) search: Vec<String>,
    /// The newest version of glibc that a symbol of it needs.
    pub(crate) glibc: Option<Version>,
}

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl Version {
    /// `GLIBC_2.34` as a version; `None` for `GLIBC_PRIVATE` and names of other libraries.
    pub(crate) fn of_symbol(name: &str) -> Option<Self> {
        Self::parse(name.strip_prefix("GLIBC_")?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = Self(
            parts.next()??,
            parts.next()??,
            parts.next().unwrap_or(Some(0))?,
        );
        parts.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(major, minor, patch) = self;
        write!(f, "{major}.{minor}")?;
        if *patch > 0 {
            write!(f, ".{patch}")?;
        }
        Ok(())
    }
}

impl Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads a module file that passed the loader's look at its headers.
///
/// # Errors
/// One line: what in it can't be read.
pub(crate) fn read(path: &Path) -> Result<ModuleFile, String> {
    let file = fs::File::open(path).map_err(|error| crate::error::plain(&error))?;
    let size = file
        .metadata()
        .map_err(|error| crate::error::plain(&error))?
        .len();
    let cache = ReadCache::new(file);
    let parsed = File::parse(&cache).map_err(|error| said(&error))?;
    read_parsed(&parsed, size)
}

/// The reader's words about what it can't read, in our style.
fn said(error: &object::Error) -> String {
    let text = error.to_string();
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_ascii_lowercase().to_string() + letters.as_str())
        .unwrap_or(text)
}

fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_NAME)]).into_owned()
}

fn read_parsed<'data, R: ReadRef<'data>>(
    file: &File<'data, R>,
    size: u64,
) -> Result<ModuleFile, String> {
    let wrong = |what: &str, error: object::Error| format!("{what}: {}", said(&error));
    let mut exported = BTreeSet::new();
    for symbol in file.dynamic_symbols() {
        if symbol.is_definition() && symbol.is_global() {
            let bytes = symbol
                .name_bytes()
                .map_err(|error| wrong("its symbols", error))?;
            // On macOS every C name has a `_` before it.
            let macho = file.format() == object::BinaryFormat::MachO;
            let bytes = bytes.strip_prefix(b"_").filter(|_| macho).unwrap_or(bytes);
            exported.insert(name(bytes));
        }
        if exported.len() >= MOST_SYMBOLS {
            break;
        }
    }
    let door = [
        (backplane_plugin_api::abi::ROOT_SYMBOL, Door::Rust),
        (backplane_plugin_api::c::SYMBOL, Door::C),
    ]
    .into_iter()
    .find(|(symbol, _)| exported.contains(*symbol))
    .map(|(_, door)| door);
    let mut needed = Vec::new();
    let libraries = file
        .import_libraries()
        .map_err(|error| wrong("the libraries that it needs", error))?;
    for library in libraries {
        let library = library.map_err(|error| wrong("the libraries that it needs", error))?;
        needed.push(name(library.name()));
    }
    let build_id = match (file.build_id(), file.mach_uuid()) {
        (Ok(Some(id)), _) => Some(hexadecimal(id)),
        (_, Ok(Some(id))) => Some(hexadecimal(&id)),
        _ => None,
    };
    let (search, glibc) = match file {
        File::Elf64(elf) => elf_only(elf).map_err(|error| wrong("its dynamic section", error))?,
        _ => (Vec::new(), None),
    };
    Ok(ModuleFile {
        format: match file.format() {
            object::BinaryFormat::Elf => "ELF".to_owned(),
            object::BinaryFormat::MachO => "Mach-O".to_owned(),
            other => format!("{other:?}"),
        },
        architecture: architecture(file.architecture()),
        size,
        build_id,
        door,
        exported: exported.into_iter().collect(),
        needed,
        search,
        glibc,
    })
}

/// Where libraries are looked for, and the newest glibc.
fn elf_only<'data, R: ReadRef<'data>>(
    elf: &ElfFile<'data, FileHeader64<Endianness>, R>,
) -> object::Result<(Vec<String>, Option<Version>)> {
    let (endian, data) = (elf.endian(), elf.data());
    let sections = elf.elf_section_table();
    let dynamic = sections.dynamic_table(endian, data)?;
    let mut search = Vec::new();
    for entry in dynamic.iter() {
        if entry.tag == DT_RUNPATH || entry.tag == DT_RPATH {
            let folders = name(dynamic.string(entry)?);
            search.extend(
                folders
                    .split(':')
                    .filter(|one| !one.is_empty())
                    .map(str::to_owned),
            );
        }
    }
    let mut newest = None;
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let version = version.name(endian, strings)?;
                newest = newest.max(Version::of_symbol(&name(version)));
            }
        }
    }
    Ok((search, newest))
}

fn architecture(known: object::Architecture) -> String {
    match known {
        object::Architecture::X86_64 => "x86-64".to_owned(),
        object::Architecture::Aarch64 => "AArch64".to_owned(),
        object::Architecture::Riscv64 => "RISC-V".to_owned(),
        other => format!("{other:?}"),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = |text| Version::of_symbol(text);
        assert!(version("GLIBC_2.34") > version("GLIBC_2.9"));
        assert!(version("GLIBC_2.2.5") > version("GLIBC_2.2"));
        assert_eq!(version("GLIBC_2.2.5").unwrap().to_string(), "2.2.5");
        assert_eq!(version("GLIBC_2.34").unwrap().to_string(), "2.34");
        for other in [
            "GLIBC_PRIVATE",
            "GLIBCXX_3.4",
            "GLIBC_2",
            "GLIBC_2.x",
            "GLIBC_1.2.3.4",
        ] {
            assert_eq!(version(other), None, "{other}");
        }
    }

    /// The tests' own program: a file of this system's format, with dynamic symbols and libraries.
    fn own() -> Vec<u8> {
        fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn this_program_is_read() {
        let read = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(
            read.needed
                .iter()
                .any(|name| name.contains("libc") || name.contains("libSystem"))
        );
        assert_eq!(read.door, None, "a program is no plugin");
        assert_eq!(read.size, own().len() as u64);
    }

    #[test]
    fn damaged_files_are_errors_and_never_panic() {
        let whole = own();
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut seed = 7_u64;
        let mut random = |most: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % most
        };
        // Headers at the front, tables of sections at the back: damage both, and cut.
        let head = &whole[..4096.min(whole.len())];
        for round in 0..200 {
            let mut bytes = head.to_vec();
            let tail = whole.len().saturating_sub(4096);
            bytes.extend_from_slice(&whole[tail..]);
            for _ in 0..=round % 8 {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            bytes.truncate(bytes.len() - random(bytes.len() / 2));
            fs::write(file.path(), &bytes).unwrap();
            if let Err(line) = read(file.path()) {
                assert!(!line.contains('\n') && !line.is_empty());
            }
        }
    }
}
