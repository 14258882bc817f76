//! Attention: keys and values of the step go to their pages, then every head of every token reads the pages it sees.

use super::frame::{Frame, SHARE_FROM};
use crate::cache::Cache;
use crate::lower::Attention;
use crate::pool::Pool;
use crate::vector::{self, Page, Softmax};
use backplane_program::Step;

/// Writes keys and values of the step's tokens to their pages. On one thread, so that the pages need no trust.
pub(super) fn append(
    frame: &Frame<'_>,
    cache: &mut Cache,
    attention: &Attention,
    step: &Step<'_>,
    places: &[(usize, usize)],
    page_size: usize,
) {
    // SAFETY: keys and values were written by earlier kernels, and nothing runs beside this.
    let (keys, values) = unsafe { (frame.read(attention.k), frame.read(attention.v)) };
    let keys = keys.chunks_exact(attention.kv_heads * attention.key_dim);
    let values = values.chunks_exact(attention.kv_heads * attention.value_dim);
    for ((position, sequence), (keys, values)) in places.iter().zip(keys.zip(values)) {
        let page = step.sequences[*sequence].pages[position / page_size];
        cache.append(
            attention.cache,
            page as usize,
            position % page_size,
            keys,
            values,
        );
    }
}

/// A scratch row of scores per thread.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) start: *mut f32,
    pub(super) page_size: usize,
}

// SAFETY: each thread takes its own row (`Frame::attention`), and a thread runs one task at a time.
unsafe impl Sync for Scores {}
impl Frame<'_> {
    pub(super) fn attention(
        &self,
        pool: &mut Pool,
        attention: &Attention,
        cache: &Cache,
        step: &Step<'_>,
        places: &[(usize, usize)],
        scores: Scores,
    ) {
        let Attention {
            heads,
            key_dim,
            value_dim,
            ..
        } = *attention;
        let (size, stride) = (scores.page_size, cache.stride());
        let group = heads / attention.kv_heads;
        let positions = |place: &(usize, usize)| {
            attention
                .window
                .map_or(place.0 + 1, |window| window.min(place.0 + 1))
        };
        let work: usize =
            places.iter().map(positions).sum::<usize>() * heads * (key_dim + value_dim) / 8;
        let task = |task: usize, worker: usize| {
            let scores = &scores;
            let (token, head) = (task / heads, task % heads);
            let (position, sequence) = places[token];
            // SAFETY: queries were written by an earlier kernel; each task has its own head of the output's row, and each
            // worker its own row of scores.
            let (query, out, scores) = unsafe {
                let out = self.start(attention.out).add(task * value_dim);
                (
                    &self.row(attention.q, token)[head * key_dim..][..key_dim],
                    std::slice::from_raw_parts_mut(out, value_dim),
                    std::slice::from_raw_parts_mut(scores.start.add(worker * stride), stride),
                )
            };
            out.fill(0.0);
            let mut state = Softmax::START;
            let first = position + 1 - positions(&places[token]);
            for (index, page) in step.sequences[sequence].pages[..=position / size]
                .iter()
                .enumerate()
                .skip(first / size)
            {
                let (from, to) = (
                    first.max(index * size) - index * size,
                    (position + 1).min((index + 1) * size) - index * size,
                );
                let (keys, values) = cache.head(attention.cache, *page as usize, head / group);
                let page = Page {
                    keys,
                    stride,
                    values,
                    from,
                    to,
                };
                vector::attend(
                    self.isa,
                    query,
                    page,
                    attention.scale,
                    attention.soft_cap,
                    scores,
                    &mut state,
                    out,
                );
            }
            let inverse = 1.0 / state.sum;
            out.iter_mut().for_each(|out| *out *= inverse);
        };
        let tasks = self.tokens * heads;
        if work < SHARE_FROM {
            (0..tasks).for_each(|index| task(index, 0));
        } else {
            pool.run(tasks, &task);
        }
    }
}
