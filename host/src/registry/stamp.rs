//! Which file it was: to tell whether a module has changed since it was opened.

use crate::loader::sha256_hex;
use std::fs::Metadata;
use std::path::Path;
use std::time::SystemTime;

/// What tells one state of a file from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    /// `None` where there is no such file.
    seen: Option<Seen>,
    /// Of its content, where it was read.
    sha256: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    modified: Option<SystemTime>,
    /// Device, inode, and when the inode was changed last: a file that was replaced, or written with its time kept.
    inode: [i64; 4],
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            let (device, inode) = (metadata.dev() as i64, metadata.ino() as i64);
            [device, inode, metadata.ctime(), metadata.ctime_nsec()]
        };
        #[cfg(not(unix))]
        let inode = [0; 4];
        Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
            inode,
        }
    }
}

impl Stamp {
    /// Of a file as it is now, its content not read.
    pub(super) fn of(path: &Path) -> Self {
        Self {
            seen: std::fs::metadata(path).ok().map(|it| Seen::of(&it)),
            sha256: None,
        }
    }

    /// The same, with the content that `copy` has.
    pub(super) fn with_content(mut self, copy: &Path) -> Self {
        self.sha256 = sha256_hex(copy).ok();
        self
    }

    /// Whether a file has the content that had this stamp. Its content is read only where that is in doubt.
    pub(super) fn still_of(&self, path: &Path) -> bool {
        let now = Self::of(path);
        match &self.sha256 {
            _ if now.seen.is_none() => false,
            _ if now.seen == self.seen => true,
            Some(before) => sha256_hex(path).is_ok_and(|now| now == *before),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_tells_and_not_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("module.so");
        std::fs::write(&file, "one").unwrap();
        let bare = Stamp::of(&file);
        let hashed = bare.clone().with_content(&file);
        assert!(hashed.still_of(&file) && bare.still_of(&file));
        let other = folder.path().join("other");
        std::fs::write(&other, "one").unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert!(hashed.still_of(&file), "the same content in another file");
        assert!(!bare.still_of(&file), "nothing tells that it is the same");
        std::fs::write(&file, "two").unwrap();
        assert!(!hashed.still_of(&file), "as long, and other");
        std::fs::remove_file(&file).unwrap();
        assert!(!hashed.still_of(&file));
        let none = Stamp::of(&file).with_content(&file);
        assert!(!none.still_of(&file), "what is not there");
    }
}
