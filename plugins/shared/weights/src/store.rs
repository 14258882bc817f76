//! The bytes that tensors lie in.

use std::ops::Deref;
use std::sync::Arc;

use crate::map::Map;

/// Where tensors' bytes lie: each stays at one address while any clone of the model lives.
#[derive(Clone)]
pub(crate) enum Store {
    /// A file.
    Mapped(Arc<Map>),
    /// Made in memory.
    Owned(Arc<Owned>),
}

impl Deref for Store {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Store::Mapped(map) => map,
            Store::Owned(owned) => owned,
        }
    }
}

/// Bytes in memory that start at a multiple of 8 bytes.
pub(crate) enum Owned {
    /// As they were handed in: they happened to start well.
    AsGiven(Vec<u8>),
    /// Copied; the second number is how many bytes there are.
    Copied(Vec<u64>, usize),
}

impl Owned {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        if bytes.as_ptr().addr().is_multiple_of(8) {
            Owned::AsGiven(bytes)
        } else {
            Self::copy_of(&bytes)
        }
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Owned::Copied(words, bytes.len())
    }
}

impl Deref for Owned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Owned::AsGiven(bytes) => bytes,
            Owned::Copied(words, length) => &bytemuck::cast_slice(words)[..*length],
        }
    }
}
