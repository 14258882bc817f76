//! Where queries are taken one after the other.

use super::{Page, Query, Softmax, one_by_one};
use crate::isa::Isa;

/// Queries that one call of [`attend`] takes best.
pub(crate) fn queries_at_once(_isa: Isa) -> usize {
    1
}

/// Whether [`attend`] takes keys and values as halves.
pub(crate) fn takes_halves(_isa: Isa) -> bool {
    false
}

/// Takes the next positions, within one page, into the attention of query heads that read the same keys, one for each of
/// `states`, at most [`queries_at_once`]. `scores` is scratch, `[queries, stride]`. What comes out for one doesn't depend on the
/// others; it depends on where the positions are cut, so callers cut at page ends only.
pub(crate) fn attend<'a>(
    isa: Isa,
    page: Page<'_>,
    query: impl FnMut(usize) -> Query<'a>,
    states: &mut [Softmax],
    scores: &mut [f32],
) {
    one_by_one(isa, page, query, states, scores);
}
