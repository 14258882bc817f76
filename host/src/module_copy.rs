//! A copy of a module that nobody else can change, so that the file may be replaced, even in place, while it is open.
//!
//! A mapped file that is written over changes under the program, which crashes. So a host that runs for long opens copies:
//! files in memory without a name, which are gone with the process. A module that looks for libraries beside itself
//! (`$ORIGIN`) would not find them from there and is opened where it is, as is any on a system that has no such files.

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::ModuleCopy;
#[cfg(target_os = "linux")]
pub(crate) use linux::ModuleCopy;

#[cfg(target_os = "linux")]
mod linux {
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    /// A copy, while this or a clone of it lives.
    #[derive(Clone, Debug)]
    pub(crate) struct ModuleCopy(Arc<File>);

    impl ModuleCopy {
        /// Copies a file; `None` where it is to be opened where it is.
        pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
            let bytes = std::fs::read(path)?;
            if looks_beside_itself(&bytes) {
                return Ok(None);
            }
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            // Longer names are refused by the system.
            let name = &name[..name.len().min(200)];
            // Older systems don't know the flag, and need none.
            let made = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
                .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC));
            let Ok(file) = made else {
                tracing::debug!("{}: opened where it is: {made:?}", path.display());
                return Ok(None);
            };
            let mut file = File::from(file);
            file.write_all(&bytes)?;
            let copy = Self(Arc::new(file));
            Ok(copy.path().exists().then_some(copy))
        }

        /// Where this process and its children find it.
        pub(crate) fn path(&self) -> PathBuf {
            let (process, number) = (std::process::id(), self.0.as_raw_fd());
            PathBuf::from(format!("/proc/{process}/fd/{number}"))
        }

        /// Keeps it for good: the system's loader knows modules by their paths, and no other file must come to have this
        /// one.
        pub(crate) fn keep(&self) {
            std::mem::forget(self.0.clone());
        }
    }

    fn looks_beside_itself(bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
            rest = &rest[at + 1..];
            if rest.starts_with(b"ORIGIN") || rest.starts_with(b"{ORIGIN}") {
                return true;
            }
        }
        false
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_copy_is_not_changed_with_its_file() {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("module.so");
            std::fs::write(&file, "before").unwrap();
            let first = ModuleCopy::of(&file).unwrap().unwrap();
            std::fs::write(&file, "after").unwrap();
            let second = ModuleCopy::of(&file).unwrap().unwrap();
            assert_eq!(std::fs::read(first.path()).unwrap(), b"before");
            assert_eq!(std::fs::read(second.path()).unwrap(), b"after");
            let seen = std::process::Command::new("cat").arg(first.path()).output();
            assert_eq!(seen.unwrap().stdout, b"before", "children see it");
            let kept = first.path();
            first.keep();
            drop(first);
            assert_eq!(std::fs::read(kept).unwrap(), b"before");
            assert!(ModuleCopy::of(&folder.path().join("gone")).is_err());
        }

        #[test]
        fn what_looks_beside_itself_stays_there() {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("module.so");
            for (text, stays) in [
                ("$ORIGIN/../lib", true),
                ("$$ ${ORIGIN}", true),
                ("$ORIGI", false),
                ("ORIGIN $", false),
            ] {
                std::fs::write(&file, text).unwrap();
                let copy = ModuleCopy::of(&file).unwrap();
                assert_eq!(copy.is_none(), stays, "{text}");
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::io;
    use std::path::{Path, PathBuf};

    /// There is none.
    #[derive(Clone, Debug)]
    pub(crate) enum ModuleCopy {}

    impl ModuleCopy {
        pub(crate) fn of(_path: &Path) -> io::Result<Option<Self>> {
            Ok(None)
        }

        pub(crate) fn path(&self) -> PathBuf {
            match *self {}
        }

        pub(crate) fn keep(&self) {
            match *self {}
        }
    }
}
