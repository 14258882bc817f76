//! The paged key/value pool, in any of the cache's types.

use crate::attend::{self, Held, LINE, POSITIONS, Soon};
use crate::dispatch::ask;
use crate::isa::Isa;
use crate::memory::Buffer;
use backplane_program::{CacheSpec, CacheType, CachedValues, DeviceError, Limits, Program};
use std::ops::Range;

/// All pages of all layers in one block, committed by the system as they are first written.
///
/// Page after page; in a page, cache after cache; in a cache, keys `[kv_heads, key_dim, stride]`, then values
/// `[kv_heads, page_size, value_dim]`, unless the cache has its values in the keys. What one head reads lies together; keys lie
/// across, so that one vector holds an element of neighbouring positions, and `stride` is the page size made up to whole vectors.
pub(crate) struct Cache {
    pool: Pool,
    layers: Vec<Layer>,
    /// Elements of a page, of all caches.
    page: usize,
    page_size: usize,
    stride: usize,
}

/// The elements of all pages as they are stored.
enum Pool {
    F32(Buffer<f32>),
    F16(Buffer<u16>),
    /// Whole numbers, and what each 32 elements of a head at a position are to be multiplied with, as a half. Scales lie as the
    /// elements do, with an element for 32: `[key_dim / 32, stride]` and `[page_size, value_dim / 32]`. So those of elements that
    /// begin at `32 n` begin at `n`.
    Q8_0 {
        codes: Buffer<i8>,
        scales: Buffer<u16>,
    },
}

/// Elements of a head that share a scale.
const BLOCK: usize = 32;

/// Where one cache lies in each page, in elements.
#[derive(Clone, Copy)]
struct Layer {
    start: usize,
    spec: CacheSpec,
}

impl Layer {
    /// Elements of the keys of one head in one page, and of the values.
    fn head(&self, page_size: usize, stride: usize) -> (usize, usize) {
        let values = match self.spec.values {
            CachedValues::Stored => page_size * self.spec.value_dim,
            CachedValues::InKeys => 0,
        };
        (stride * self.spec.key_dim, values)
    }
}

impl Cache {
    pub(crate) fn new(program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        limits.cache_type.check(&program.caches)?;
        let stride = limits.page_size.checked_next_multiple_of(POSITIONS);
        let too_much = || DeviceError::Memory {
            device: "cpu".into(),
            bytes: usize::MAX,
            what: "the key/value cache".into(),
        };
        let mut layers = vec![];
        let mut page = 0usize;
        for spec in &program.caches {
            let keys = stride.and_then(|stride| stride.checked_mul(spec.key_dim));
            // Where they are in the keys, the room is needed for turning them over.
            let values = limits.page_size.checked_mul(spec.value_dim);
            let head = keys
                .zip(values)
                .filter(|(keys, values)| keys.checked_add(*values).is_some());
            let elements = head.and_then(|(keys, values)| match spec.values {
                CachedValues::Stored => (keys + values).checked_mul(spec.kv_heads),
                CachedValues::InKeys => keys.checked_mul(spec.kv_heads),
            });
            let end = elements.and_then(|elements| elements.checked_add(page));
            layers.push(Layer {
                start: page,
                spec: *spec,
            });
            page = end.ok_or_else(too_much)?;
        }
        let all = page.checked_mul(limits.pages).ok_or_else(too_much)?;
        let what = "the key/value cache";
        let pool = match limits.cache_type {
            CacheType::F32 => Pool::F32(Buffer::new(all, what)?),
            CacheType::F16 => Pool::F16(Buffer::new(all, what)?),
            CacheType::Q8_0 => Pool::Q8_0 {
                codes: Buffer::new(all, what)?,
                scales: Buffer::new(all / BLOCK, what)?,
            },
        };
        Ok(Self {
            pool,
            layers,
            page,
            page_size: limits.page_size,
            stride: stride.unwrap_or(limits.page_size),
        })
    }

    /// Positions of a page.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Positions of a page made up to whole vectors.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of a page over all layers.
    pub(crate) fn page_bytes(&self) -> usize {
        let elements = self.page;
        match self.pool {
            Pool::F32(_) => elements * size_of::<f32>(),
            Pool::F16(_) => elements * size_of::<u16>(),
            Pool::Q8_0 { .. } => elements + elements / BLOCK * size_of::<u16>(),
        }
    }

    /// Whether attention over a cache can't read it as it is: [`head`](Self::head) then takes some time, and scratch.
    pub(crate) fn is_widened(&self, isa: Isa, cache: usize) -> bool {
        let read = match self.pool {
            Pool::F32(_) => true,
            Pool::F16(_) => attend::takes_halves(isa),
            Pool::Q8_0 { .. } => false,
        };
        !read || self.layers[cache].spec.values == CachedValues::InKeys
    }

    /// Floats of scratch that [`head`](Self::head) takes, for any cache.
    pub(crate) fn scratch(&self, isa: Isa) -> usize {
        (0..self.layers.len())
            .filter(|cache| self.is_widened(isa, *cache))
            .map(|cache| {
                let CacheSpec {
                    key_dim, value_dim, ..
                } = self.layers[cache].spec;
                key_dim * self.stride + value_dim * self.page_size
            })
            .max()
            .unwrap_or(0)
    }

    /// Writes keys and values of one token (`[kv_heads * dim]` each) at a position of a page. `values` is empty where the cache
    /// has them in the keys.
    ///
    /// # Safety
    /// Nobody else touches this position of the page meanwhile.
    pub(crate) unsafe fn append(
        &self,
        isa: Isa,
        cache: usize,
        page: usize,
        row: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let layer = self.layers[cache];
        let (size, stride) = (self.page_size, self.stride);
        let (key_dim, value_dim) = (layer.spec.key_dim, layer.spec.value_dim);
        let (key_len, value_len) = layer.head(size, stride);
        let start = page * self.page + layer.start;
        let value_start = start + layer.spec.kv_heads * key_len;
        let end = value_start + layer.spec.kv_heads * value_len;
        assert!(row < size && end <= self.elements());
        let keys = keys
            .chunks_exact(key_dim)
            .take(layer.spec.kv_heads)
            .enumerate()
            .map(|(head, new)| (start + head * key_len, new));
        let values = values
            .chunks_exact(value_dim)
            .take(layer.spec.kv_heads)
            .enumerate()
            .map(|(head, new)| (value_start + head * value_len + row * value_dim, new));
        // SAFETY: the cache of the page lies in the pool: keys of a head in `key_len` elements, one of each `stride` at the position; values of
        // a head at a position in `value_dim` neighbours. These are the position's own, which the caller keeps for us. A scale of
        // elements from `32 n` on is at `n`.
        unsafe {
            match &self.pool {
                Pool::F32(pool) => {
                    for (at, new) in keys {
                        across(pool.as_ptr().add(at + row), stride, new.iter().copied());
                    }
                    for (at, new) in values {
                        along(pool.as_ptr().add(at), new.iter().copied());
                    }
                }
                Pool::F16(pool) => {
                    for (at, new) in keys {
                        for (part, new) in new.chunks(AT_ONCE).enumerate() {
                            let halves = &mut [0; AT_ONCE][..new.len()];
                            attend::narrow_f16(isa, new, halves);
                            let first = at + part * AT_ONCE * stride;
                            across(
                                pool.as_ptr().add(first + row),
                                stride,
                                halves.iter().copied(),
                            );
                        }
                    }
                    for (at, new) in values {
                        let halves =
                            std::slice::from_raw_parts_mut(pool.as_ptr().add(at), new.len());
                        attend::narrow_f16(isa, new, halves);
                    }
                }
                Pool::Q8_0 { codes, scales } => {
                    let (codes, scales) = (codes.as_ptr(), scales.as_ptr());
                    for (at, new) in keys {
                        for (b, block) in new.as_chunks::<BLOCK>().0.iter().enumerate() {
                            let (whole, scale) = attend::round_q8_0(isa, block);
                            let first = at + b * BLOCK * stride;
                            across(codes.add(first + row), stride, whole.into_iter());
                            scales.add(first / BLOCK + row).write(scale);
                        }
                    }
                    for (at, new) in values {
                        for (b, block) in new.as_chunks::<BLOCK>().0.iter().enumerate() {
                            let (whole, scale) = attend::round_q8_0(isa, block);
                            let first = at + b * BLOCK;
                            along(codes.add(first), whole.into_iter());
                            scales.add(first / BLOCK).write(scale);
                        }
                    }
                }
            }
        }
    }

    /// Of all pages.
    fn elements(&self) -> usize {
        match &self.pool {
            Pool::F32(pool) => pool.len(),
            Pool::F16(pool) => pool.len(),
            Pool::Q8_0 { codes, .. } => codes.len(),
        }
    }

    /// Keys and values of one head in one page; values of `rows` only. `scratch` holds what attention doesn't read as it is stored; then what is `ahead`, as [`apart`](Self::apart) says, is asked for.
    pub(crate) fn head<'a>(
        &'a self,
        isa: Isa,
        (cache, page, head): (usize, usize, usize),
        rows: Range<usize>,
        ahead: [isize; 2],
        scratch: &'a mut [f32],
    ) -> Held<'a> {
        let layer = self.layers[cache];
        let (size, stride) = (self.page_size, self.stride);
        let value_dim = layer.spec.value_dim;
        let (key_len, value_len) = layer.head(size, stride);
        let start = page * self.page + layer.start;
        let keys = start + head * key_len..start + (head + 1) * key_len;
        let values = start + layer.spec.kv_heads * key_len + head * value_len;
        let values = values..values + value_len;
        // Of the values, what is wanted; none where they are in the keys.
        let within = match layer.spec.values {
            CachedValues::Stored => rows.start * value_dim..rows.end * value_dim,
            CachedValues::InKeys => 0..0,
        };
        let wanted = values.start + within.start..values.start + within.end;
        if !self.is_widened(isa, cache) {
            match &self.pool {
                Pool::F32(pool) => {
                    return Held::Floats([keys, values].map(|range| &pool.as_slice()[range]));
                }
                Pool::F16(pool) => {
                    return Held::Halves([keys, values].map(|range| &pool.as_slice()[range]));
                }
                Pool::Q8_0 { .. } => {}
            }
        }
        let (key_scratch, value_scratch) = scratch.split_at_mut(key_len);
        let value_scratch = &mut value_scratch[..size * value_dim];
        let keys: &[f32] = match &self.pool {
            Pool::F32(pool) => &pool.as_slice()[keys],
            Pool::F16(pool) => {
                let pool = pool.as_slice();
                let widen = |stored: &[u16], ahead: isize, out: &mut [f32]| {
                    for (stored, out) in stored.chunks(AT_ONCE).zip(out.chunks_mut(AT_ONCE)) {
                        soon(stored, ahead);
                        attend::widen_f16(isa, stored, out);
                    }
                };
                widen(&pool[keys], ahead[0], key_scratch);
                widen(&pool[wanted], ahead[1], &mut value_scratch[within]);
                key_scratch
            }
            Pool::Q8_0 { codes, scales } => {
                let (codes, scales) = (codes.as_slice(), scales.as_slice());
                let of =
                    |elements: &Range<usize>| &scales[elements.start / BLOCK..elements.end / BLOCK];
                soon(&codes[keys.clone()], ahead[0]);
                soon(&codes[wanted.clone()], ahead[1]);
                attend::widen_q8_0_across(
                    isa,
                    &codes[keys.clone()],
                    of(&keys),
                    stride,
                    key_scratch,
                );
                attend::widen_q8_0_along(
                    isa,
                    &codes[wanted.clone()],
                    of(&wanted),
                    &mut value_scratch[within],
                );
                key_scratch
            }
        };
        if layer.spec.values == CachedValues::InKeys {
            let across = &keys[..value_dim * stride];
            attend::turn_over(isa, across, stride, rows.start, rows.end, value_scratch);
        }
        Held::Floats([keys, value_scratch])
    }

    /// How far behind the keys and values of one head in one page lie those of another, in elements.
    pub(crate) fn apart(
        &self,
        cache: usize,
        (page, head): (usize, usize),
        (other, of): (usize, usize),
    ) -> [isize; 2] {
        let (key_len, value_len) = self.layers[cache].head(self.page_size, self.stride);
        let pages = (other as isize - page as isize) * self.page as isize;
        let heads = of as isize - head as isize;
        [key_len, value_len].map(|len| pages + heads * len as isize)
    }

    /// What is to be asked for while a page is met: of one head in the page after it what was not asked for while the one before was, and the
    /// first half in the page behind that, if there is one. Nothing of what is widened.
    pub(crate) fn soon(
        &self,
        cache: usize,
        (page, head): (usize, usize),
        behind: Option<(usize, usize)>,
    ) -> Soon {
        let layer = self.layers[cache];
        let lens = layer.head(self.page_size, self.stride);
        let (start, size): (*const u8, usize) = match &self.pool {
            Pool::F32(pool) => (pool.as_ptr().cast(), size_of::<f32>()),
            Pool::F16(pool) => (pool.as_ptr().cast(), size_of::<u16>()),
            Pool::Q8_0 { .. } => return Soon::NONE,
        };
        let (keys, values) = (lens.0 * size, lens.1 * size);
        let heads = layer.spec.kv_heads * keys;
        // Where keys and values begin.
        let places = |(page, head): (usize, usize)| {
            let all = start.wrapping_add((page * self.page + layer.start) * size);
            let values = all.wrapping_add(heads + head * values);
            [all.wrapping_add(head * keys), values]
        };
        let behind_by = |[k, v]: [*const u8; 2], parts: usize| {
            [
                k.wrapping_add(keys / 4 * parts),
                v.wrapping_add(values / 4 * parts),
            ]
        };
        let next = places((page, head));
        let [a, b] = behind_by(next, 2);
        let ([c, d], parts) = match behind {
            Some(behind) => (places(behind), 2),
            None => (behind_by(next, 3), 1),
        };
        Soon::new([a, b, c, d], (keys.max(values) / 4 * parts).div_ceil(LINE))
    }

    /// Copies a page in all layers.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let (from, to) = (from * self.page..(from + 1) * self.page, to * self.page);
        match &mut self.pool {
            Pool::F32(pool) => pool.as_mut_slice().copy_within(from, to),
            Pool::F16(pool) => pool.as_mut_slice().copy_within(from, to),
            Pool::Q8_0 { codes, scales } => {
                let blocks = from.start / BLOCK..from.end / BLOCK;
                codes.as_mut_slice().copy_within(from, to);
                scales.as_mut_slice().copy_within(blocks, to / BLOCK);
            }
        }
    }
}

/// Elements that are widened at once.
const AT_ONCE: usize = 256;

/// Asks for what lies so many elements behind these.
fn soon<T>(elements: &[T], ahead: isize) {
    if ahead != 0 {
        // Two lines are asked for at once.
        for pair in elements.chunks(128 / size_of::<T>()) {
            ask(pair.as_ptr().wrapping_offset(ahead));
        }
    }
}

/// Writes elements `stride` apart.
///
/// # Safety
/// There is room for them, which nobody else touches.
unsafe fn across<T>(to: *mut T, stride: usize, new: impl Iterator<Item = T>) {
    for (index, new) in new.enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(index * stride).write(new) };
    }
}

/// Writes neighbouring elements.
///
/// # Safety
/// As for [`across`].
unsafe fn along<T>(to: *mut T, new: impl Iterator<Item = T>) {
    // SAFETY: the caller's promise.
    unsafe { across(to, 1, new) }
}
