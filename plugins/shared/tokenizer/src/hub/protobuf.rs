//! Reads the fields of a protobuf message, as far as `tokenizer.model` needs it (Protocol Buffers, "Encoding").

/// A message's fields in order. Ends after the first error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    length: usize,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self {
            rest: message,
            length: message.len(),
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let number = Some(key >> 3).filter(|&number| number > 0)?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                let (bytes, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                Value::Fixed64(*bytes)
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.rest.split_at_checked(length)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => {
                let (bytes, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                Value::Fixed32(*bytes)
            }
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    /// Number and value, or where a field that can't be read begins, bytes from the message's start.
    type Item = Result<(u64, Value<'a>), usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let start = self.length - self.rest.len();
        Some(self.field().ok_or_else(|| {
            self.rest = &[];
            start
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<(u64, Value<'_>), usize>> {
        Fields::new(bytes).collect()
    }

    #[test]
    fn fields_are_read_as_encoded() {
        assert_eq!(read(&[]), []);
        assert_eq!(read(&[0x08, 0x96, 0x01]), [Ok((1, Value::Varint(150)))]);
        assert_eq!(
            read(&[0x12, 1, b'a', 0x1D, 0, 0, 0x80, 0x3F]),
            [
                Ok((2, Value::Bytes(b"a"))),
                Ok((3, Value::Fixed32([0, 0, 0x80, 0x3F])))
            ]
        );
        assert_eq!(
            read(&[0x21, 1, 2, 3, 4, 5, 6, 7, 8]),
            [Ok((4, Value::Fixed64([1, 2, 3, 4, 5, 6, 7, 8])))]
        );
        let minus_one = [
            0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01,
        ];
        assert_eq!(read(&minus_one), [Ok((1, Value::Varint(u64::MAX)))]);
    }

    #[test]
    fn what_is_broken_is_an_error_where_it_begins() {
        for broken in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 2, b'a'],
            &[
                0x12, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01,
            ],
            &[
                0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02,
            ],
            &[
                0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01,
            ],
            &[0x0B],
            &[0x00, 0x00],
            &[0x1D, 1, 2, 3],
        ] {
            assert_eq!(read(broken), [Err(0)], "{broken:?}");
            let after = [&[0x08, 1][..], broken].concat();
            assert_eq!(
                read(&after),
                [Ok((1, Value::Varint(1))), Err(2)],
                "{broken:?}"
            );
        }
    }
}
