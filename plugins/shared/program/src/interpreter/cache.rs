//! The paged key/value pool.

use crate::device::{CacheType, DeviceError, Limits, SequenceStep, Step};
use crate::program::{CacheId, CacheSpec, CachedValues, Program};
use half::f16;

/// All pages of all layers. A page takes no memory until a step writes to it.
///
/// A page holds, for each cache one after the other: keys `[page_size, kv_heads * key_dim]`, then values
/// `[page_size, kv_heads * value_dim]`, unless the keys have them. All are `f32`, rounded to what the cache type can hold.
pub(super) struct Pool {
    /// By page id; empty until first written.
    pages: Vec<Box<[f32]>>,
    page_size: usize,
    page_floats: usize,
    /// For each cache: where its keys start in a page.
    offsets: Vec<usize>,
    specs: Vec<CacheSpec>,
    cache_type: CacheType,
}

impl Pool {
    pub(super) fn new(program: &Program, limits: &Limits) -> Result<Self, DeviceError> {
        let too_big = || memory(usize::MAX, "a cache page");
        let mut offsets = vec![];
        let mut page_floats = 0usize;
        for spec in &program.caches {
            offsets.push(page_floats);
            page_floats = spec
                .width()
                .and_then(|floats| floats.checked_mul(limits.page_size))
                .and_then(|floats| floats.checked_add(page_floats))
                .filter(|floats| floats.checked_mul(size_of::<f32>()).is_some())
                .ok_or_else(too_big)?;
        }
        let mut pages = Vec::new();
        let bytes = limits.pages.saturating_mul(size_of::<Box<[f32]>>());
        pages
            .try_reserve_exact(limits.pages)
            .map_err(|_| memory(bytes, "the page table"))?;
        pages.resize(limits.pages, Box::default());
        Ok(Self {
            pages,
            page_size: limits.page_size,
            page_floats,
            offsets,
            specs: program.caches.clone(),
            cache_type: limits.cache_type,
        })
    }

    pub(super) fn page_floats(&self) -> usize {
        self.page_floats
    }

    /// Takes memory for every page that the step writes for the first time.
    pub(super) fn commit(&mut self, step: &Step<'_>) -> Result<(), DeviceError> {
        for sequence in step.sequences {
            for &page in written_pages(sequence, self.page_size) {
                if self.pages[page as usize].is_empty() {
                    self.pages[page as usize] = self.new_page()?;
                }
            }
        }
        Ok(())
    }

    fn new_page(&self) -> Result<Box<[f32]>, DeviceError> {
        let mut page = Vec::new();
        let bytes = self.page_floats * size_of::<f32>();
        page.try_reserve_exact(self.page_floats)
            .map_err(|_| memory(bytes, "a cache page"))?;
        page.resize(self.page_floats, 0.0);
        Ok(page.into_boxed_slice())
    }

    /// Writes keys and values (`[tokens, kv_heads * dim]`; no values where the keys have them) of the step's tokens to their
    /// pages.
    pub(super) fn append(
        &mut self,
        cache: CacheId,
        step: &Step<'_>,
        keys: &[f32],
        values: Option<&[f32]>,
    ) {
        let cache_type = self.cache_type;
        let layout = self.layout(cache);
        let (key_width, value_width) = (layout.key_width, layout.value_width);
        let mut token = 0;
        for sequence in step.sequences {
            for position in sequence.past..sequence.past + sequence.count {
                let page = &mut self.pages[sequence.pages[position / self.page_size] as usize];
                let at = layout.key(position % self.page_size);
                let stored = &mut page[at..at + key_width];
                stored.copy_from_slice(&keys[token * key_width..][..key_width]);
                round(cache_type, stored);
                if let Some(values) = values {
                    let at = layout.value(position % self.page_size);
                    let stored = &mut page[at..at + value_width];
                    stored.copy_from_slice(&values[token * value_width..][..value_width]);
                    round(cache_type, stored);
                }
                token += 1;
            }
        }
    }

    /// Copies a page that there is to another.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        self.pages[to as usize] = self.pages[from as usize].clone();
    }

    pub(super) fn view(&self, cache: CacheId) -> CacheView<'_> {
        CacheView {
            pages: &self.pages,
            layout: self.layout(cache),
            page_size: self.page_size,
            spec: self.specs[cache.0],
        }
    }

    fn layout(&self, cache: CacheId) -> Layout {
        let spec = self.specs[cache.0];
        let key_width = spec.kv_heads * spec.key_dim;
        let keys = self.offsets[cache.0];
        let (values, value_width, value_stride) = match spec.values {
            CachedValues::Stored => (
                keys + key_width * self.page_size,
                spec.kv_heads * spec.value_dim,
                spec.value_dim,
            ),
            CachedValues::InKeys => (keys, key_width, spec.key_dim),
        };
        Layout {
            keys,
            values,
            key_width,
            value_width,
            value_stride,
        }
    }
}

/// Rounds elements of whole heads to what the cache type can hold; see [`CacheType`].
pub(super) fn round(cache_type: CacheType, heads: &mut [f32]) {
    match cache_type {
        CacheType::F32 => {}
        CacheType::F16 => heads
            .iter_mut()
            .for_each(|x| *x = f16::from_f32(*x).to_f32()),
        CacheType::Q8_0 => {
            for block in heads.chunks_exact_mut(cache_type.block()) {
                let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let scale = largest / 127.0;
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                let scale = f16::from_f32(scale).to_f32();
                // Bounded for scales so small that there is no inverse.
                block
                    .iter_mut()
                    .for_each(|x| *x = (*x * inverse).round().clamp(-127.0, 127.0) * scale);
            }
        }
    }
}

/// The pages of a sequence that a step writes to.
fn written_pages<'a>(sequence: &SequenceStep<'a>, page_size: usize) -> &'a [u32] {
    let end = (sequence.past + sequence.count).div_ceil(page_size);
    &sequence.pages[sequence.past / page_size..end]
}

#[derive(Clone, Copy)]
struct Layout {
    keys: usize,
    values: usize,
    key_width: usize,
    value_width: usize,
    /// From one value head to the next.
    value_stride: usize,
}

impl Layout {
    fn key(&self, row: usize) -> usize {
        self.keys + row * self.key_width
    }

    fn value(&self, row: usize) -> usize {
        self.values + row * self.value_width
    }
}

/// One layer's cache, for reading.
#[derive(Clone, Copy)]
pub(super) struct CacheView<'a> {
    pages: &'a [Box<[f32]>],
    layout: Layout,
    page_size: usize,
    pub(super) spec: CacheSpec,
}

impl<'a> CacheView<'a> {
    /// Key head `head` at a position of the sequence with these pages: `[key_dim]`.
    pub(super) fn key(&self, pages: &[u32], position: usize, head: usize) -> &'a [f32] {
        let page = &self.pages[pages[position / self.page_size] as usize];
        let dim = self.spec.key_dim;
        &page[self.layout.key(position % self.page_size) + head * dim..][..dim]
    }

    /// Value head `head` at a position: `[value_dim]`.
    pub(super) fn value(&self, pages: &[u32], position: usize, head: usize) -> &'a [f32] {
        let page = &self.pages[pages[position / self.page_size] as usize];
        let head = head * self.layout.value_stride;
        &page[self.layout.value(position % self.page_size) + head..][..self.spec.value_dim]
    }
}

fn memory(bytes: usize, what: &str) -> DeviceError {
    DeviceError::Memory {
        device: "reference interpreter".into(),
        bytes,
        what: what.into(),
    }
}
