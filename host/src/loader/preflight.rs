//! Whether a file is a whole module for this machine, by its headers alone. The system's own loader would end the
//! process on a truncated one, and say misleading things about others.

use super::{elf, macho, refuse};
use backplane_plugin_api::{Verdict, VerdictState};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// What was found instead of a module, and what would mend it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) found: String,
    pub(super) action: &'static str,
}

impl Refusal {
    pub(super) fn new(found: impl Into<String>, action: &'static str) -> Self {
        Self {
            found: found.into(),
            action,
        }
    }
}

/// What to do about a file that is not whole.
pub(super) const INSTALL_AGAIN: &str = "install the module again";
/// What to do about a file for another machine.
pub(super) const OTHER_BUILD: &str = "install the build of the module for this machine";
/// What to do about a file that is something else.
const NAME_A_MODULE: &str = "name a plugin module";

/// A file with its length; reads at offsets and errs past the end.
pub(super) struct Source<R> {
    reader: R,
    pub(super) length: u64,
}

impl<R: Read + Seek> Source<R> {
    fn new(mut reader: R) -> io::Result<Self> {
        let length = reader.seek(SeekFrom::End(0))?;
        Ok(Self { reader, length })
    }

    /// Up to `most` bytes at `offset`.
    pub(super) fn read(&mut self, offset: u64, most: usize) -> Result<Vec<u8>, Refusal> {
        let unreadable =
            |error: io::Error| Refusal::new(format!("can't be read: {error}"), INSTALL_AGAIN);
        self.reader
            .seek(SeekFrom::Start(offset))
            .map_err(unreadable)?;
        let mut bytes = Vec::new();
        self.reader
            .by_ref()
            .take(most as u64)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        Ok(bytes)
    }

    /// Exactly `count` bytes at `offset`.
    pub(super) fn read_exact(
        &mut self,
        offset: u64,
        count: usize,
        what: &str,
    ) -> Result<Vec<u8>, Refusal> {
        let bytes = self.read(offset, count)?;
        if bytes.len() < count {
            return Err(truncated(
                what,
                offset.saturating_add(count as u64),
                self.length,
            ));
        }
        Ok(bytes)
    }
}

pub(super) fn truncated(what: &str, end: u64, length: u64) -> Refusal {
    Refusal::new(
        format!("truncated: {what} ends at byte {end}, the file at {length}"),
        INSTALL_AGAIN,
    )
}

/// Checks the file's headers.
pub(super) fn check(path: &Path) -> Result<(), Verdict> {
    File::open(path)
        .and_then(Source::new)
        .map_err(|error| {
            Refusal::new(
                format!("can't be read: {error}"),
                "check the file's permissions",
            )
        })
        .and_then(|mut source| check_source(&mut source))
        .map_err(|refusal| {
            refuse(
                VerdictState::Incompatible,
                path,
                refusal.found,
                refusal.action,
            )
        })
}

fn check_source<R: Read + Seek>(source: &mut Source<R>) -> Result<(), Refusal> {
    let start = source.read(0, 512)?;
    let elf = start.starts_with(elf::MAGIC);
    let macho = macho::is(&start);
    if elf {
        elf::check(source)?;
    } else if macho {
        macho::check(source, &start)?;
    } else {
        return Err(Refusal::new(
            format!("{}; expected a plugin module", name_other(&start)),
            NAME_A_MODULE,
        ));
    }
    let (format, wants_macho) = if elf {
        ("ELF", false)
    } else {
        ("Mach-O", true)
    };
    if wants_macho != cfg!(target_vendor = "apple") {
        return Err(Refusal::new(
            format!("a {format} module; this is {}", std::env::consts::OS),
            OTHER_BUILD,
        ));
    }
    Ok(())
}

/// What a file is that is no module of any Unix.
fn name_other(start: &[u8]) -> String {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"MZ", "a Windows (PE) file"),
        (b"!<arch>\n", "a static library"),
        (b"\0asm", "a WebAssembly module"),
        (b"GGUF", "a GGUF model"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1f\x8b", "a gzip archive"),
        (
            b"version https://git-lfs",
            "a Git LFS pointer instead of the file itself",
        ),
    ];
    if start.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return (*name).to_owned();
    }
    // The last character may be cut.
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default(),
    };
    let is_text = text.len() + 3 >= start.len() && !text.is_empty();
    if is_text && text.chars().all(|c| !c.is_control() || c.is_whitespace()) {
        return "a text file".to_owned();
    }
    if start.iter().all(|&byte| byte == 0) {
        return "a file of zeros".to_owned();
    }
    let bytes: Vec<_> = start
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("an unknown kind of file (starts with {})", bytes.join(" "))
}

#[cfg(test)]
pub(super) fn check_bytes(bytes: &[u8]) -> Result<(), String> {
    let mut source = Source::new(io::Cursor::new(bytes)).expect("a cursor can be read");
    check_source(&mut source).map_err(|refusal| refusal.found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_is_named() {
        for (bytes, name) in [
            (&b""[..], "an empty file"),
            (b"hello\nworld\n", "a text file"),
            ("é".repeat(300).as_bytes(), "a text file"),
            (b"MZ\x90\0", "a Windows (PE) file"),
            (
                b"version https://git-lfs.github.com/spec/v1\n",
                "a Git LFS pointer instead of the file itself",
            ),
            (b"!<arch>\n", "a static library"),
            (b"\0\0\0\0\0", "a file of zeros"),
            (
                b"\x01\x02\x03\x04\x05",
                "an unknown kind of file (starts with 01 02 03 04)",
            ),
        ] {
            assert_eq!(
                check_bytes(bytes).unwrap_err(),
                format!("{name}; expected a plugin module")
            );
        }
    }
}
