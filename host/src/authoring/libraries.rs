//! Whether the libraries that a module needs are on this machine. Looks where the system's loader would; opens none.

use super::file::{ModuleFile, Version};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What was found of the libraries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Names that were found nowhere.
    pub(crate) missing: Vec<String>,
    /// glibc's version on this machine, where it is known and older than what the module needs.
    pub(crate) older_glibc: Option<Version>,
}

/// Looks for the libraries. `None` where this system's loader looks in places that are not known here.
pub(crate) fn look(module: &Path, file: &ModuleFile) -> Option<Found> {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) {
        return None;
    }
    let loaded = loaded();
    let cached = std::fs::read("/etc/ld.so.cache").map(|bytes| cached_names(&bytes));
    // Without that file, all that the system has is looked for in the usual folders alone.
    let cached = cached.unwrap_or_default();
    let folders = folders(module, &file.search);
    let there = |name: &String| {
        let is_path = name.contains('/');
        let file_name = |path: &PathBuf| path.file_name().is_some_and(|file| *file == **name);
        if is_path {
            Path::new(name).is_file()
        } else {
            loaded.iter().any(file_name)
                || cached.contains(name)
                || folders.iter().any(|folder| folder.join(name).is_file())
        }
    };
    let missing = file.needed.iter().filter(|name| !there(name)).cloned();
    let missing = missing.collect();
    let ours = loaded
        .iter()
        .find(|path| path.file_name().is_some_and(|name| name == "libc.so.6"))
        .and_then(|libc| newest_defined(libc));
    let older_glibc = ours.filter(|ours| file.glibc.is_some_and(|wanted| wanted > *ours));
    Some(Found {
        missing,
        older_glibc,
    })
}

/// Folders in which the loader looks: those of the environment, the module's own, the usual ones.
fn folders(module: &Path, search: &[String]) -> Vec<PathBuf> {
    let origin = module.parent().unwrap_or(Path::new("/"));
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&named)
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect();
    folders.extend(search.iter().map(|folder| {
        let folder = folder.replace("${ORIGIN}", "$ORIGIN");
        match folder.strip_prefix("$ORIGIN") {
            Some(rest) => origin.join(rest.trim_start_matches('/')),
            None => PathBuf::from(folder),
        }
    }));
    folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    folders
}

/// Libraries that this very process has mapped: the loader takes them as they are.
fn loaded() -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .collect()
}

/// The names in the loader's cache: after a header, places of texts that end with zero; the texts of paths and names lie at
/// its end. A name is any text in it without a `/`, which no other text there is.
fn cached_names(bytes: &[u8]) -> BTreeSet<String> {
    const NEW_FORMAT: &[u8] = b"glibc-ld.so.cache1.1";
    let start = bytes
        .windows(NEW_FORMAT.len())
        .position(|window| window == NEW_FORMAT);
    let Some(start) = start else {
        return BTreeSet::new();
    };
    let word = |at: usize| {
        let bytes: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes) as usize)
    };
    // `cache_file_new`: magic, `nlibs`, …, 48 bytes; then entries of 24 bytes: flags, key, value, …
    let count = word(start + 20).unwrap_or(0).min(bytes.len() / 24);
    let text = |at: usize| {
        let rest = bytes.get(start.checked_add(at)?..)?;
        let end = rest.iter().take(1024).position(|&byte| byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    };
    (0..count)
        .filter_map(|index| text(word(start + 48 + index * 24 + 4)?))
        .collect()
}

/// The newest version that glibc's library defines.
fn newest_defined(libc: &Path) -> Option<Version> {
    use object::read::ReadCache;
    let cache = ReadCache::new(std::fs::File::open(libc).ok()?);
    let object::File::Elf64(elf) = object::File::parse(&cache).ok()? else {
        return None;
    };
    let (endian, data) = (elf.endian(), elf.data());
    let sections = elf.elf_section_table();
    let (mut defined, link) = sections.gnu_verdef(endian, data).ok()??;
    let strings = sections.strings(endian, data, link).ok()?;
    let mut newest = None;
    while let Some((_, mut names)) = defined.next().ok()? {
        if let Some(name) = names.next().ok()? {
            let name = name.name(endian, strings).ok()?;
            newest = newest.max(Version::of_symbol(&String::from_utf8_lossy(name)));
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn own_libraries_are_found_and_others_not() {
        let program = std::env::current_exe().unwrap();
        let own = super::super::file::read(&program).unwrap();
        assert_eq!(look(&program, &own), Some(Found::default()));
        let mut other = own.clone();
        other.needed.push("libno-such-library.so.7".to_owned());
        let beside = program.file_name().unwrap().to_string_lossy().into_owned();
        other.needed.push(beside.clone());
        let found = look(&program, &other).unwrap();
        let missing: Vec<&str> = found.missing.iter().map(String::as_str).collect();
        // It is mapped, being this process.
        assert_eq!(missing, ["libno-such-library.so.7"]);
        other.glibc = Version::of_symbol("GLIBC_9.9");
        let ours = look(&program, &other).unwrap().older_glibc.unwrap();
        assert!(ours > Version::of_symbol("GLIBC_2.1").unwrap());
    }

    #[test]
    fn a_library_beside_the_module_is_found_by_its_run_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lib")).unwrap();
        let module = folder.path().join("m.so");
        for search in ["$ORIGIN/lib", "${ORIGIN}/lib"] {
            let folders = folders(&module, &[search.to_owned()]);
            assert!(folders.contains(&folder.path().join("lib")), "{folders:?}");
        }
    }

    #[test]
    fn a_damaged_cache_has_no_names_and_does_no_harm() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        for word in [1_u32, 0, 0, 0, 0, 0, 0, 0, 72, 80, 0, 0, 0] {
            cache.extend_from_slice(&word.to_ne_bytes());
        }
        cache.extend_from_slice(b"libx.so\0/l/libx.so\0");
        let names: Vec<String> = cached_names(&cache).into_iter().collect();
        assert_eq!(names, ["libx.so"]);
        for cut in 0..cache.len() {
            cached_names(&cache[..cut]);
        }
        cache[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        cache[52..56].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(cached_names(&cache).iter().all(|name| name.len() < 1024));
    }
}
