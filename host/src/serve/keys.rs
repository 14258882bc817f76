//! Keys: who may ask, by a file that the operator keeps.
//!
//! One key a line, `NAME: KEY` or `NAME KEY`, with `admin` after it where its holder may operate the server; `#` begins a
//! comment. A name may have several keys, so that one can be changed for another without a gap. In place of a key there may be
//! its hash, `sha256:` with 64 hexadecimal digits.
//!
//! Invariants: a key is kept as its hash alone, and is in no message. All hashes are compared, each in constant time.

use crate::error::{Error, Result, plain};
use axum::http::{HeaderMap, HeaderName, header};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Fewest and most bytes of a key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 8..=512;
/// Most bytes of a name.
const NAME_BYTES: usize = 64;
/// Most bytes of a file.
const FILE_BYTES: u64 = 1 << 20;

/// The header that Anthropic's clients put their key in.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// One key.
#[derive(Clone)]
struct Key {
    name: Arc<str>,
    admin: bool,
    hash: [u8; 32],
}

/// Who has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) name: Arc<str>,
    pub(super) admin: bool,
}

/// The keys of a file, which may be read again.
pub(super) struct Keys {
    file: PathBuf,
    all: RwLock<Arc<[Key]>>,
}

impl Keys {
    /// Reads a file; the text is what the operator should know of it.
    ///
    /// # Errors
    /// It can't be read, others can write to it, or a line is wrong.
    pub(super) fn open(file: &Path) -> Result<(Self, Option<String>)> {
        let (all, note) = load(file)?;
        let keys = Self {
            file: file.to_path_buf(),
            all: RwLock::new(all),
        };
        Ok((keys, note))
    }

    /// Reads the file again; on an error the keys stay as they were. `None` where nothing has changed.
    ///
    /// # Errors
    /// As [`Keys::open`].
    pub(super) fn reread(&self) -> Result<Option<String>> {
        let (fresh, note) = load(&self.file)?;
        let all = self.all.write();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        let same = all.len() == fresh.len()
            && all.iter().zip(fresh.iter()).all(|(one, other)| {
                (&one.name, one.admin, one.hash) == (&other.name, other.admin, other.hash)
            });
        if same {
            return Ok(None);
        }
        let count = fresh.len();
        *all = fresh;
        let note = note.map_or_else(String::new, |note| format!("; {note}"));
        Ok(Some(format!("{count} keys are taken now{note}")))
    }

    /// Whose key a request has; `None` where it has none, or none that is known.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Option<Holder> {
        let all = self.all.read();
        let all = all.unwrap_or_else(PoisonError::into_inner).clone();
        given(headers).find_map(|key| find(&all, key.as_bytes()))
    }
}

/// Whether a request has any key, known or not.
pub(super) fn is_sent(headers: &HeaderMap) -> bool {
    given(headers).next().is_some()
}

/// The keys that a request has.
fn given(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let plain = headers.get(API_KEY).and_then(|value| value.to_str().ok());
    bearer.into_iter().chain(plain.map(str::trim))
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Looks at every key, whichever is found.
fn find(all: &[Key], key: &[u8]) -> Option<Holder> {
    let hash = hash(key);
    let mut at = u32::MAX;
    for (index, key) in (0_u32..).zip(all) {
        let same: Choice = key.hash.ct_eq(&hash);
        at = u32::conditional_select(&at, &index, same);
    }
    let key = all.get(at as usize)?;
    Some(Holder {
        name: key.name.clone(),
        admin: key.admin,
    })
}

fn load(file: &Path) -> Result<(Arc<[Key]>, Option<String>)> {
    let failed = |why: &str| {
        let message = format!("{}: {why}", file.display());
        Error::usage(message, "the file has a line `NAME: KEY` for each key")
    };
    let about = std::fs::metadata(file).map_err(|error| failed(&plain(&error)))?;
    if about.len() > FILE_BYTES {
        return Err(failed("too large for a file of keys"));
    }
    let note = mode(file, &about)?;
    let text = std::fs::read_to_string(file).map_err(|error| failed(&plain(&error)))?;
    let all = parse(&text).map_err(|why| failed(&why))?;
    Ok((all, note))
}

/// Whether others can write to the file, which is an error, or read it, which is said.
#[cfg(unix)]
fn mode(file: &Path, about: &std::fs::Metadata) -> Result<Option<String>> {
    use std::os::unix::fs::PermissionsExt;
    let mode = about.permissions().mode();
    let others = |who: &str| format!("{} can be {who} by others", file.display());
    if mode & 0o022 != 0 {
        let action = format!("chmod 600 {}", file.display());
        return Err(Error::usage(others("written"), &action));
    }
    Ok((mode & 0o004 != 0).then(|| others("read")))
}

#[cfg(not(unix))]
#[expect(
    clippy::unnecessary_wraps,
    reason = "elsewhere the system's own rules hold"
)]
fn mode(_: &Path, _: &std::fs::Metadata) -> Result<Option<String>> {
    Ok(None)
}

fn parse(text: &str) -> std::result::Result<Arc<[Key]>, String> {
    let mut all: Vec<Key> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = parse_line(line).map_err(|why| format!("line {number}: {why}"))?;
        if let Some(other) = all.iter().find(|other| other.hash == key.hash) {
            return Err(format!(
                "line {number}: the same key as one of `{}`",
                other.name
            ));
        }
        all.push(key);
    }
    if all.is_empty() {
        return Err("there is no key in it".to_owned());
    }
    Ok(all.into())
}

/// What is wrong is said without the line: it has a key.
fn parse_line(line: &str) -> std::result::Result<Key, String> {
    let (name, rest) = line
        .split_once([':', ' ', '\t'])
        .ok_or("expected a name and a key")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(plain) {
        return Err(format!(
            "expected a name of letters, digits and -_.@, at most {NAME_BYTES}"
        ));
    }
    let mut words = rest.split_whitespace();
    let key = words
        .next()
        .ok_or_else(|| format!("no key after `{name}`"))?;
    let admin = match (words.next(), words.next()) {
        (None, _) => false,
        (Some("admin"), None) => true,
        _ => {
            return Err(format!(
                "expected `admin` or nothing after the key of `{name}`, which has no spaces"
            ));
        }
    };
    let hash = match key.strip_prefix("sha256:") {
        Some(digits) => from_hexadecimal(digits)
            .ok_or_else(|| format!("expected 64 hexadecimal digits in the hash of `{name}`"))?,
        None if !KEY_BYTES.contains(&key.len()) || !key.bytes().all(|b| b.is_ascii_graphic()) => {
            let (least, most) = (KEY_BYTES.start(), KEY_BYTES.end());
            return Err(format!(
                "expected {least} to {most} letters, digits and signs as the key of `{name}`"
            ));
        }
        None => hash(key.as_bytes()),
    };
    Ok(Key {
        name: name.into(),
        admin,
        hash,
    })
}

fn from_hexadecimal(digits: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn holder(all: &[Key], key: &str) -> Option<(String, bool)> {
        find(all, key.as_bytes()).map(|holder| (holder.name.to_string(), holder.admin))
    }

    #[test]
    fn files_of_keys() {
        let text = "# who\n\nalice: sk-alice-1\nalice\tsk-alice-2 \n  bob   sk-bob-12345 admin\n\
            carol: sha256:2C70E12B7A0646F92279F427C7B38E7334D8E5389CFF167A1DC30E73F826B683\n";
        let all = parse(text).unwrap();
        assert_eq!(holder(&all, "sk-alice-1"), Some(("alice".into(), false)));
        assert_eq!(holder(&all, "sk-alice-2"), Some(("alice".into(), false)));
        assert_eq!(holder(&all, "sk-bob-12345"), Some(("bob".into(), true)));
        assert_eq!(holder(&all, "key"), Some(("carol".into(), false)));
        for wrong in ["", "sk-alice-", "sk-alice-11", "SK-ALICE-1", "admin"] {
            assert_eq!(holder(&all, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn wrong_lines_are_named_without_their_key() {
        for (text, said) in [
            ("", "no key in it"),
            ("# all\n", "no key in it"),
            ("secret-one", "line 1: expected a name"),
            ("a: secret-one\n: secret-two", "line 2: expected a name"),
            ("a b:secret-one secret", "expected `admin`"),
            ("a: short", "expected 8 to 512"),
            ("a:", "no key after `a`"),
            ("ä: secret-one", "expected a name"),
            ("a: secret-one root", "expected `admin`"),
            ("a: secret-one admin secret", "expected `admin`"),
            ("a: sha256:12", "64 hexadecimal"),
            ("a: secret-öne", "expected 8 to 512"),
            (
                "a: secret-one\nb: secret-one",
                "line 2: the same key as one of `a`",
            ),
        ] {
            let why = parse(text).err().unwrap();
            assert!(why.contains(said), "{text:?}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn keys_are_taken_from_both_headers() {
        let of = |pairs: &[(HeaderName, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(name.clone(), HeaderValue::from_static(value));
            }
            given(&headers).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(header::AUTHORIZATION, "Bearer k")]), ["k"]);
        assert_eq!(of(&[(header::AUTHORIZATION, "bearer  k ")]), ["k"]);
        assert_eq!(of(&[(API_KEY, "k")]), ["k"]);
        assert_eq!(
            of(&[(API_KEY, "a"), (header::AUTHORIZATION, "Bearer b")]),
            ["b", "a"]
        );
        assert!(of(&[(header::AUTHORIZATION, "Basic azpr")]).is_empty());
        assert!(of(&[(header::AUTHORIZATION, "k")]).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        std::fs::write(&file, "a: secret-one\n").unwrap();
        let set = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (mode, right, noted) in [
            (0o600, true, false),
            (0o640, true, false),
            (0o644, true, true),
            (0o660, false, false),
            (0o606, false, false),
        ] {
            set(mode);
            let opened = Keys::open(&file);
            assert_eq!(opened.is_ok(), right, "{mode:o}");
            let note = opened.ok().and_then(|(_, note)| note);
            assert_eq!(note.is_some(), noted, "{mode:o}");
        }
        set(0o600);
        let (keys, _) = Keys::open(&file).unwrap();
        assert_eq!(keys.reread().unwrap(), None);
        std::fs::write(&file, "b: secret-two\n").unwrap();
        assert!(keys.reread().unwrap().is_some());
        std::fs::write(&file, "broken").unwrap();
        assert!(keys.reread().is_err());
        let mut headers = HeaderMap::new();
        headers.insert(API_KEY, HeaderValue::from_static("secret-two"));
        assert_eq!(&*keys.holder(&headers).unwrap().name, "b");
        assert!(Keys::open(folder.path()).is_err());
    }
}
