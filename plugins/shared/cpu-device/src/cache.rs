//! The paged key/value pool.

use crate::memory::Buffer;
use crate::vector::POSITIONS;
use backplane_program::{CacheSpec, DeviceError, Limits, Program};

/// All pages of all layers in one block, committed by the system as they are first written.
///
/// Cache after cache; in a cache, page after page; in a page, keys `[kv_heads, key_dim, stride]`, then values
/// `[kv_heads, page_size, value_dim]`. What one head reads lies together; keys lie across, so that one vector holds an element
/// of neighbouring positions, and `stride` is the page size made up to whole vectors.
pub(crate) struct Cache {
    pool: Buffer<f32>,
    layers: Vec<Layer>,
    page_size: usize,
    stride: usize,
    pages: usize,
}

/// Where one cache lies in the pool.
#[derive(Clone, Copy)]
struct Layer {
    start: usize,
    page_floats: usize,
    spec: CacheSpec,
}

impl Cache {
    pub(crate) fn new(program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let stride = limits.page_size.checked_next_multiple_of(POSITIONS);
        let mut layers = vec![];
        let mut start = 0usize;
        for spec in &program.caches {
            let keys = stride.and_then(|stride| stride.checked_mul(spec.key_dim));
            let values = limits.page_size.checked_mul(spec.value_dim);
            let head = keys
                .zip(values)
                .and_then(|(keys, values)| keys.checked_add(values));
            let page_floats = head.and_then(|floats| floats.checked_mul(spec.kv_heads));
            let end = page_floats
                .and_then(|floats| floats.checked_mul(limits.pages))
                .and_then(|all| all.checked_add(start));
            // `Buffer::new` refuses the largest number with the proper error.
            let Some((page_floats, end)) = page_floats.zip(end) else {
                return Err(Buffer::<f32>::new(usize::MAX, "the key/value cache")
                    .err()
                    .unwrap_or_else(|| {
                        DeviceError::Step(format!(
                            "{} pages of {} positions are too many",
                            limits.pages, limits.page_size
                        ))
                    }));
            };
            layers.push(Layer {
                start,
                page_floats,
                spec: *spec,
            });
            start = end;
        }
        let pool = Buffer::new(start, "the key/value cache")?;
        let stride = stride.unwrap_or(limits.page_size);
        Ok(Self {
            pool,
            layers,
            page_size: limits.page_size,
            stride,
            pages: limits.pages,
        })
    }

    /// Positions of a page made up to whole vectors.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of a page over all layers.
    pub(crate) fn page_bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| layer.page_floats)
            .sum::<usize>()
            * size_of::<f32>()
    }

    /// Writes keys and values of one token (`[kv_heads * dim]` each) at a position of a page.
    pub(crate) fn append(
        &mut self,
        cache: usize,
        page: usize,
        row: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let layer = self.layers[cache];
        let page = &mut self.pool.as_mut_slice()[layer.start + page * layer.page_floats..]
            [..layer.page_floats];
        let CacheSpec {
            kv_heads,
            key_dim,
            value_dim,
            ..
        } = layer.spec;
        let (key_part, value_part) = page.split_at_mut(kv_heads * key_dim * self.stride);
        let heads = key_part
            .chunks_exact_mut(key_dim * self.stride)
            .zip(keys.chunks_exact(key_dim));
        for (head, new) in heads {
            for (across, new) in head.chunks_exact_mut(self.stride).zip(new) {
                across[row] = *new;
            }
        }
        let heads = value_part
            .chunks_exact_mut(self.page_size * value_dim)
            .zip(values.chunks_exact(value_dim));
        for (head, new) in heads {
            head[row * value_dim..][..value_dim].copy_from_slice(new);
        }
    }

    /// Keys `[key_dim, stride]` and values `[page_size, value_dim]` of one head in one page.
    pub(crate) fn head(&self, cache: usize, page: usize, head: usize) -> (&[f32], &[f32]) {
        let layer = self.layers[cache];
        let page =
            &self.pool.as_slice()[layer.start + page * layer.page_floats..][..layer.page_floats];
        let CacheSpec {
            key_dim, value_dim, ..
        } = layer.spec;
        let (key_floats, value_floats) = (self.stride * key_dim, self.page_size * value_dim);
        let values = layer.spec.kv_heads * key_floats + head * value_floats;
        (
            &page[head * key_floats..][..key_floats],
            &page[values..][..value_floats],
        )
    }

    /// Copies a page in all layers.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        for layer in &self.layers {
            let all =
                &mut self.pool.as_mut_slice()[layer.start..][..layer.page_floats * self.pages];
            let at = from * layer.page_floats;
            all.copy_within(at..at + layer.page_floats, to * layer.page_floats);
        }
    }
}
