//! Zeroed memory on a cache-line boundary that the system commits as it is first touched.

use backplane_program::DeviceError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Bytes to which buffers are aligned: a cache line, and the widest vector.
const LINE: usize = 64;

/// Bytes of a large page of the system's, and of the blocks from which on it is asked for some.
const HUGE: usize = 2 << 20;

/// Asks the system to commit a block in large pages, where it can: what is read here and there in it is then found sooner.
#[cfg(target_os = "linux")]
fn huge(block: NonNull<u8>, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // Whole small pages, of any size that Linux has.
    const PAGE: usize = 64 << 10;
    let skip = block.as_ptr().align_offset(PAGE);
    let whole = bytes.saturating_sub(skip) / PAGE * PAGE;
    let start = block.as_ptr().wrapping_add(skip).cast();
    // SAFETY: `whole` bytes of the block; what they hold doesn't change. It is a wish: refused, everything is as before.
    let _ = unsafe { madvise(start, whole, Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn huge(_block: NonNull<u8>, _bytes: usize) {}

/// Types for which all-zero bytes are a value, and which need no dropping.
///
/// # Safety
/// All bit patterns of zeros are valid, alignment is at most [`LINE`], and there is no `Drop`.
pub(crate) unsafe trait Zeroed: Copy {}

// SAFETY: a float of zero bits is 0.0; alignment 4.
unsafe impl Zeroed for f32 {}
// SAFETY: whole numbers; alignment 2 and 1.
unsafe impl Zeroed for u16 {}
// SAFETY: as above.
unsafe impl Zeroed for i8 {}

/// A fixed number of elements, zeroed, not yet committed by the system where the allocator can leave it so.
pub(crate) struct Buffer<T: Zeroed> {
    start: NonNull<T>,
    len: usize,
    block: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a buffer owns its memory alone, as a `Vec<T>` does, and `T: Copy` holds no thread-bound state here (floats and
// plain blocks only, by `Zeroed`).
unsafe impl<T: Zeroed + Send> Send for Buffer<T> {}
// SAFETY: shared access gives out `&[T]` and raw pointers only.
unsafe impl<T: Zeroed + Sync> Sync for Buffer<T> {}

impl<T: Zeroed> Buffer<T> {
    /// `len` zeroed elements; `what` names them in the error.
    pub(crate) fn new(len: usize, what: &str) -> Result<Self, DeviceError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(LINE));
        let error = || DeviceError::Memory {
            device: "cpu".into(),
            bytes: bytes.unwrap_or(usize::MAX),
            what: what.to_owned(),
        };
        // Alignment 16 keeps the allocator on its path for zero pages; the line boundary is found by hand.
        let layout = bytes
            .and_then(|bytes| Layout::from_size_align(bytes, 16).ok())
            .ok_or_else(error)?;
        // SAFETY: the layout's size is at least `LINE`, so not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(error)?;
        if layout.size() >= HUGE {
            huge(block, layout.size());
        }
        let skip = block.as_ptr().align_offset(LINE);
        // SAFETY: `skip < LINE`, and the block has `LINE` bytes more than the elements take.
        let start = unsafe { block.add(skip) }.cast();
        Ok(Self {
            start,
            len,
            block,
            layout,
        })
    }

    /// Bytes that it takes once all of it was touched.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.start.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `start` is aligned and followed by `len` elements that were zeroed, which `Zeroed` makes valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.block.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_bounded() {
        let mut buffer = Buffer::<f32>::new(1000, "test").unwrap();
        assert_eq!(buffer.as_ptr() as usize % LINE, 0);
        assert!(buffer.as_slice().iter().all(|x| *x == 0.0) && buffer.len() == 1000);
        buffer.as_mut_slice()[999] = 1.0;
        let error = Buffer::<f32>::new(usize::MAX / 2, "the moon")
            .err()
            .unwrap();
        assert!(error.to_string().contains("the moon"), "{error}");
    }
}
