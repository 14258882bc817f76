//! The alphabet of byte-level vocabularies: every byte is written as one printable character.
//!
//! Printable Latin-1 bytes stand for themselves; the other 68 are U+0100 to U+0143 in the order of their values
//! (GPT-2's rule, which all byte-level vocabularies follow).

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const LAST: usize = 0x143;

const CHARACTERS: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0usize, 0x100u32);
    while byte < 256 {
        let code = if is_printable(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        table[byte] = match char::from_u32(code) {
            Some(character) => character,
            None => panic!("every code is below U+0144"),
        };
        byte += 1;
    }
    assert!(next == LAST as u32 + 1);
    table
};

// Index: character; value: byte, or 256 for a character outside the alphabet.
const BYTES: [u16; LAST + 1] = {
    let mut table = [256u16; LAST + 1];
    let mut byte = 0;
    while byte < 256 {
        table[CHARACTERS[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

/// The character that stands for `byte`.
pub(crate) fn character_of(byte: u8) -> char {
    CHARACTERS[usize::from(byte)]
}

/// The byte that `character` stands for.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    BYTES
        .get(character as usize)
        .and_then(|&byte| u8::try_from(byte).ok())
}

/// Appends the bytes that `spelling` stands for; characters outside the alphabet stand for their own UTF-8.
pub(crate) fn decode_into(spelling: &str, out: &mut Vec<u8>) {
    for character in spelling.chars() {
        match byte_of(character) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Appends the spelling of `bytes`.
pub(crate) fn encode_into(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&byte| character_of(byte)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(character_of(byte)), Some(byte));
        }
        for (byte, character) in [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'a', 'a'),
            (0xAD, '\u{143}'),
            (0, '\u{100}'),
        ] {
            assert_eq!(character_of(byte), character);
        }
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('▁'), None);
    }
}
