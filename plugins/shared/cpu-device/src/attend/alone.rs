//! Where queries are taken one after the other.

use super::{Page, Query, Softmax};
use crate::isa::Isa;

/// Queries that one call of [`attend`](super::attend) takes best.
pub(crate) fn queries_at_once(_isa: Isa) -> usize {
    1
}

/// Never called where queries are taken one by one.
pub(super) fn attend<'a>(
    _page: Page<'_>,
    _query: impl FnMut(usize) -> Query<'a>,
    _states: &mut [Softmax],
    _scores: &mut [f32],
) {
    unreachable!("queries are taken one by one")
}
