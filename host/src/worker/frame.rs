//! Frames on the socket: a length, the number of the call they belong to, and JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Longest body that is taken for meant, in bytes.
const MOST: u32 = 1 << 30;

/// Bytes before the body: its length (`u32`) and the call's number (`u64`), little-endian.
const HEAD: usize = 12;

/// A frame's bytes.
pub(super) fn frame(call: u64, body: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, body)?;
    let length = u32::try_from(bytes.len() - HEAD)
        .ok()
        .filter(|length| *length <= MOST)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message of over 1 GiB"))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..HEAD].copy_from_slice(&call.to_le_bytes());
    Ok(bytes)
}

/// Writes a frame in one go.
pub(super) fn write(to: &mut impl Write, call: u64, body: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(call, body)?)
}

/// Reads a frame: the call's number, and its body or why that is none. `Ok(None)`: the other side has closed.
pub(super) fn read<T: DeserializeOwned>(
    from: &mut impl Read,
) -> io::Result<Option<(u64, Result<T, String>)>> {
    let mut head = [0; HEAD];
    let mut have = 0;
    while have < HEAD {
        match from.read(&mut head[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let number = |range: std::ops::Range<usize>| {
        head[range]
            .iter()
            .rev()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let (length, call) = (number(0..4), number(4..HEAD));
    if length > u64::from(MOST) {
        let message = format!("a message of {length} bytes; expected at most {MOST}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // Grows as bytes come: a length alone takes no memory.
    let mut body = Vec::new();
    from.take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let parsed = serde_json::from_slice(&body).map_err(|error| error.to_string());
    Ok(Some((call, parsed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in() {
        let mut bytes = Vec::new();
        write(&mut bytes, 7, &"héllo").unwrap();
        write(&mut bytes, u64::MAX, &vec![1, 2, 3]).unwrap();
        let mut from = bytes.as_slice();
        let first = read::<String>(&mut from).unwrap().unwrap();
        assert_eq!(first, (7, Ok("héllo".to_owned())));
        let second = read::<Vec<u32>>(&mut from).unwrap().unwrap();
        assert_eq!(second, (u64::MAX, Ok(vec![1, 2, 3])));
        assert!(read::<String>(&mut from).unwrap().is_none());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut bytes = Vec::new();
        write(&mut bytes, 7, &"hello").unwrap();
        for cut in [1, 4, HEAD, HEAD + 1, bytes.len() - 1] {
            assert!(read::<String>(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        let wrong = read::<u32>(&mut bytes.as_slice()).unwrap().unwrap();
        assert!(wrong.0 == 7 && wrong.1.is_err(), "the call is still known");
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = read::<String>(&mut bytes.as_slice()).unwrap_err();
        assert!(error.to_string().contains("4294967295"), "{error}");
    }
}
