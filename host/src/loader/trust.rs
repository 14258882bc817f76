//! Whether a module file may be opened at all. Reads the file, runs nothing of it.

use super::refuse;
use backplane_plugin_api::{Verdict, VerdictState};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Checks existence, permissions and hash; gives the path with links resolved.
pub(super) fn check(path: &Path, sha256: Option<&str>) -> Result<PathBuf, Verdict> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refuse(
            VerdictState::Absent,
            path,
            "no such file",
            "install the module or correct its path",
        ),
        _ => unreadable(path, &error),
    })?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        return Err(refuse(
            VerdictState::Incompatible,
            path,
            format!("{what}; expected a module file"),
            "name the module file itself",
        ));
    }
    let real = fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
    check_permissions(path)?;
    check_permissions(&real)?;
    if let Some(pin) = sha256 {
        check_hash(&real, pin)?;
    }
    Ok(real)
}

fn unreadable(path: &Path, error: &io::Error) -> Verdict {
    refuse(
        VerdictState::Incompatible,
        path,
        format!("can't be read: {error}"),
        "check the file's permissions",
    )
}

/// Refuses what anyone on the machine could have put there: a file that everyone may write, a folder that everyone may
/// write (sticky or not: it would admit a file of anyone's), and further up a folder whose entries anyone may replace.
#[cfg(unix)]
fn check_permissions(path: &Path) -> Result<(), Verdict> {
    use std::os::unix::fs::MetadataExt;
    const EVERYONE_WRITES: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let absolute = std::path::absolute(path).map_err(|error| unreadable(path, &error))?;
    for (level, place) in absolute.ancestors().enumerate() {
        let mode = fs::metadata(place)
            .map_err(|error| unreadable(place, &error))?
            .mode();
        let refused = mode & EVERYONE_WRITES != 0 && (level < 2 || mode & STICKY == 0);
        if refused {
            let kind = if level == 0 { "file" } else { "folder" };
            return Err(refuse(
                VerdictState::Untrusted,
                path,
                format!(
                    "the {kind} {} is writable by everyone (mode {:04o})",
                    place.display(),
                    mode & 0o7777
                ),
                &format!("chmod o-w {}", place.display()),
            ));
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_permissions(_path: &Path) -> Result<(), Verdict> {
    Ok(())
}

pub(super) fn check_hash(path: &Path, pin: &str) -> Result<(), Verdict> {
    let wanted = pin.trim().to_ascii_lowercase();
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(refuse(
            VerdictState::Misconfigured,
            path,
            format!("sha256 = \"{pin}\": expected 64 hexadecimal digits"),
            "correct the pin in the manifest",
        ));
    }
    let found = sha256_hex(path).map_err(|error| unreadable(path, &error))?;
    if found == wanted {
        return Ok(());
    }
    Err(refuse(
        VerdictState::Untrusted,
        path,
        format!("sha256 is {found}, the manifest pins {wanted}"),
        "install the pinned file, or pin this one if you trust it",
    ))
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn sha256_hex(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => {
                return Ok(hash
                    .finalize()
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect());
            }
            Ok(read) => hash.update(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn hashes_as_the_standard_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("abc");
        fs::write(&file, "abc").unwrap();
        let right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(&file).unwrap(), right);
        assert!(check(&file, Some(&right.to_uppercase())).is_ok());
        let wrong = "0".repeat(64);
        let verdict = check(&file, Some(&wrong)).unwrap_err();
        assert_eq!(verdict.state, VerdictState::Untrusted);
        assert!(
            verdict.message.contains(right) && verdict.message.contains(&wrong),
            "{verdict}"
        );
        assert_eq!(
            check(&file, Some("12")).unwrap_err().state,
            VerdictState::Misconfigured
        );
    }

    #[test]
    fn what_everyone_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, file) = (
            folder.path().join("inner"),
            folder.path().join("inner/file"),
        );
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "x").unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        let state =
            |path: &Path| check(path, None).map_or_else(|verdict| Some(verdict.state), |_| None);
        set(&inner, 0o755);
        set(&file, 0o644);
        assert_eq!(state(&file), None);
        set(&file, 0o666);
        assert_eq!(
            state(&file),
            Some(VerdictState::Untrusted),
            "the file itself"
        );
        set(&file, 0o644);
        set(&inner, 0o1777);
        assert_eq!(
            state(&file),
            Some(VerdictState::Untrusted),
            "its folder, although sticky"
        );
        let link = folder.path().join("link");
        symlink(&file, &link).unwrap();
        assert_eq!(
            state(&link),
            Some(VerdictState::Untrusted),
            "a link from a safe folder"
        );
        set(&inner, 0o755);
        assert_eq!(state(&link), None);
        set(folder.path(), 0o777);
        assert_eq!(
            state(&file),
            Some(VerdictState::Untrusted),
            "a folder further up"
        );
    }

    #[test]
    fn absent_and_not_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone.so");
        assert_eq!(check(&gone, None).unwrap_err().state, VerdictState::Absent);
        symlink(&gone, folder.path().join("broken")).unwrap();
        assert_eq!(
            check(&folder.path().join("broken"), None)
                .unwrap_err()
                .state,
            VerdictState::Absent
        );
        assert_eq!(
            check(folder.path(), None).unwrap_err().state,
            VerdictState::Incompatible
        );
    }
}
