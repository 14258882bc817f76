//! The paged key/value pool.

use crate::memory::Buffer;
use backplane_program::{CacheSpec, DeviceError, Limits, Program};

/// All pages of all layers in one block, committed by the system as they are first written.
///
/// Cache after cache; in a cache, page after page; in a page, keys `[kv_heads, page_size, key_dim]`, then values
/// `[kv_heads, page_size, value_dim]`: what one head reads lies together.
pub(crate) struct Cache {
    pool: Buffer<f32>,
    layers: Vec<Layer>,
    page_size: usize,
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
        let mut layers = vec![];
        let mut start = 0usize;
        for spec in &program.caches {
            let floats = spec
                .key_dim
                .checked_add(spec.value_dim)
                .and_then(|dims| dims.checked_mul(spec.kv_heads));
            let page_floats = floats.and_then(|floats| floats.checked_mul(limits.page_size));
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
        Ok(Self {
            pool,
            layers,
            page_size: limits.page_size,
            pages: limits.pages,
        })
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
        let (key_part, value_part) =
            page.split_at_mut(layer.spec.kv_heads * self.page_size * layer.spec.key_dim);
        for (part, dim, new) in [
            (key_part, layer.spec.key_dim, keys),
            (value_part, layer.spec.value_dim, values),
        ] {
            for (head, new) in part
                .chunks_exact_mut(self.page_size * dim)
                .zip(new.chunks_exact(dim))
            {
                head[row * dim..][..dim].copy_from_slice(new);
            }
        }
    }

    /// Keys `[page_size, key_dim]` and values `[page_size, value_dim]` of one head in one page.
    pub(crate) fn head(&self, cache: usize, page: usize, head: usize) -> (&[f32], &[f32]) {
        let layer = self.layers[cache];
        let page =
            &self.pool.as_slice()[layer.start + page * layer.page_floats..][..layer.page_floats];
        let (key_floats, value_floats) = (
            self.page_size * layer.spec.key_dim,
            self.page_size * layer.spec.value_dim,
        );
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
