//! The searches that every quantiser is made of: a scale for levels around zero, and a scale and an offset for levels from zero.
//!
//! Both minimise the plain squared error. For a given choice of codes the best scale (and offset) is a least-squares
//! solution, and for a given scale the best codes are the nearest levels; the two are alternated from several starts. Values
//! are divided by the largest magnitude of their block before ([`Normalised`]), so that no square leaves the range of `f32`.
//! Sums run in eight lanes, in one order: results are the same everywhere.

use crate::blocks::Half;

/// Lanes of the sums: the compiler makes vectors of them.
const LANES: usize = 8;

/// Magnitudes below this share of a block's largest count as zero: no scale has that much range.
const NEGLIGIBLE: f32 = 1e-9;

/// Levels that a code can stand for, to be multiplied by a scale.
pub(super) trait Grid {
    /// The lowest level.
    const LOW: f32;
    /// The highest level.
    const HIGH: f32;
    /// Where the value of the largest magnitude is tried, as shares of the lowest and the highest level: first, step, count.
    /// Coarse grids gain by cutting it off, fine ones hardly.
    const SWEEP: (f32, f32, u8);

    /// The level nearest to `value`.
    fn nearest(value: f32) -> f32;
}

/// The whole numbers from `LOW` to `HIGH`.
pub(super) struct Whole<const LOW: i32, const HIGH: i32>;

impl<const LOW: i32, const HIGH: i32> Grid for Whole<LOW, HIGH> {
    const LOW: f32 = LOW as f32;
    const HIGH: f32 = HIGH as f32;
    const SWEEP: (f32, f32, u8) = match HIGH - LOW {
        ..8 => (0.6, 0.06, 12),
        8..16 => (0.8, 0.05, 8),
        16..32 => (0.92, 0.03, 6),
        _ => (0.97, 0.015, 5),
    };

    #[inline(always)]
    fn nearest(value: f32) -> f32 {
        round(value.max(Self::LOW).min(Self::HIGH))
    }
}

/// The nearest whole number, for magnitudes below 2^22; halves go to the even one.
#[inline(always)]
pub(super) fn round(value: f32) -> f32 {
    // At this size a float's last bit stands for one, so the addition rounds.
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// A block's values divided by the largest magnitude among them.
pub(super) struct Normalised<const N: usize, const GROUPS: usize> {
    /// The values, each in -1..=1.
    pub(super) groups: [[f32; N]; GROUPS],
    /// What they were divided by.
    pub(super) peak: f32,
}

impl<const N: usize, const GROUPS: usize> Normalised<N, GROUPS> {
    /// `None` when all values are too small for a half-precision scale to tell them from zero.
    pub(super) fn new(values: &[f32]) -> Option<Self> {
        assert_eq!(values.len(), N * GROUPS);
        let peak = values
            .iter()
            .fold(0.0_f32, |peak, value| peak.max(value.abs()));
        if peak < 1e-8 {
            return None;
        }
        let groups =
            std::array::from_fn(|group| std::array::from_fn(|i| values[group * N + i] / peak));
        Some(Normalised { groups, peak })
    }

    /// A scale of the normalised values as it will be stored, and what it then is in normalised terms. `None` when it is too
    /// large for half precision.
    pub(super) fn stored(&self, scale: f32) -> Option<(Half, f32)> {
        let half = half(scale * self.peak)?;
        Some((half, half.to_f32() / self.peak))
    }

    /// As [`stored`](Self::stored), rounded away from zero: what was to reach the largest value still does.
    pub(super) fn reaching(&self, scale: f32) -> Option<(Half, f32)> {
        let (half, exact) = self.stored(scale)?;
        if exact.abs() >= scale.abs() {
            return Some((half, exact));
        }
        let next = half::f16::from_bits(half.bits() + 1);
        (next.is_finite()).then(|| (Half(next.to_le_bytes()), next.to_f32() / self.peak))
    }
}

/// The number in half precision; one that isn't zero doesn't become zero. `None` when it is too large.
pub(super) fn half(value: f32) -> Option<Half> {
    let mut rounded = half::f16::from_f32(value);
    if rounded.is_infinite() {
        return None;
    }
    if value != 0.0 && rounded.to_f32() == 0.0 {
        rounded = half::f16::from_bits(1 | (u16::from(value < 0.0) << 15));
    }
    Some(Half(rounded.to_le_bytes()))
}

/// The reciprocal, and 0 for 0.
#[inline(always)]
pub(super) fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// Sums of level times value and of level squared, for the levels nearest to `values * inverse`.
#[inline(always)]
pub(super) fn moments<G: Grid, const N: usize>(values: &[f32; N], inverse: f32) -> (f32, f32) {
    let (mut with_values, mut squares) = ([0.0; LANES], [0.0; LANES]);
    for values in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let level = G::nearest(values[lane] * inverse);
            with_values[lane] += level * values[lane];
            squares[lane] += level * level;
        }
    }
    (total(with_values), total(squares))
}

/// The squared error of `scale` times the nearest levels.
#[inline(always)]
pub(super) fn error<G: Grid, const N: usize>(values: &[f32; N], scale: f32) -> f32 {
    let inverse = reciprocal(scale);
    let mut sums = [0.0; LANES];
    for values in values.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let off = values[lane] - scale * G::nearest(values[lane] * inverse);
            sums[lane] += off * off;
        }
    }
    total(sums)
}

/// The best scale so far.
#[derive(Clone, Copy)]
struct Found {
    /// With the best scale for its codes, a choice's squared error is the values' power less this.
    gain: f32,
    scale: f32,
}

impl Found {
    /// This, or the best scale for the levels nearest to `values * inverse`.
    #[inline(always)]
    fn or<G: Grid, const N: usize>(self, values: &[f32; N], inverse: f32) -> Self {
        let (with_values, squares) = moments::<G, N>(values, inverse);
        if squares > 0.0 && with_values * with_values > self.gain * squares {
            return Found {
                gain: with_values * with_values / squares,
                scale: with_values / squares,
            };
        }
        self
    }
}

/// The scale with the least squared error for levels around zero, of either sign.
pub(super) fn scale<G: Grid, const N: usize>(values: &[f32; N]) -> f32 {
    let peak = values.iter().fold(0.0_f32, |peak, value| {
        if value.abs() > peak.abs() {
            *value
        } else {
            peak
        }
    });
    if peak.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let mut best = Found {
        gain: 0.0,
        scale: 0.0,
    };
    let (first, step, count) = G::SWEEP;
    for share in (0..count).map(|at| first + step * f32::from(at)) {
        best = best.or::<G, N>(values, share * G::LOW / peak);
        best = best.or::<G, N>(values, share * G::HIGH / peak);
    }
    for _ in 0..2 {
        best = best.or::<G, N>(values, reciprocal(best.scale));
    }
    best.scale
}

/// What a group of values is taken for: `scale * code + offset`.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) offset: f32,
}

/// The code from 0 to `TOP` that is nearest to a value.
#[inline(always)]
fn code<const TOP: u8>(value: f32, inverse: f32, offset: f32) -> f32 {
    round(((value - offset) * inverse).max(0.0).min(f32::from(TOP)))
}

impl Line {
    /// The squared error with the nearest codes from 0 to `TOP`.
    #[inline(always)]
    pub(super) fn error<const TOP: u8, const N: usize>(self, values: &[f32; N]) -> f32 {
        let inverse = reciprocal(self.scale);
        let mut sums = [0.0; LANES];
        for values in values.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                let code = code::<TOP>(values[lane], inverse, self.offset);
                let off = values[lane] - (self.scale * code + self.offset);
                sums[lane] += off * off;
            }
        }
        total(sums)
    }

    /// The nearest codes from 0 to `TOP`.
    #[inline(always)]
    pub(super) fn codes<const TOP: u8, const N: usize>(self, values: &[f32; N]) -> [u8; N] {
        let inverse = reciprocal(self.scale);
        values.map(|value| code::<TOP>(value, inverse, self.offset) as u8)
    }

    /// The line with the least squared error for the codes that this one gives; the offset is at most `ceiling`.
    #[inline(always)]
    fn refined<const TOP: u8, const N: usize>(self, values: &[f32; N], ceiling: f32) -> Self {
        let inverse = reciprocal(self.scale);
        let mut sums = [[0.0; LANES]; 4];
        for values in values.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                let code = code::<TOP>(values[lane], inverse, self.offset);
                sums[0][lane] += code;
                sums[1][lane] += code * code;
                sums[2][lane] += values[lane];
                sums[3][lane] += code * values[lane];
            }
        }
        let [codes, squares, plain, with_codes] = sums.map(total);
        let count = N as f32;
        let determinant = count * squares - codes * codes;
        if determinant <= 0.0 {
            return self;
        }
        let scale = (count * with_codes - codes * plain) / determinant;
        let offset = (plain - scale * codes) / count;
        if offset > ceiling {
            return Line {
                scale: with_codes / squares,
                offset: ceiling,
            };
        }
        Line { scale, offset }
    }
}

/// The line with the least squared error for codes from 0 to `TOP`; its offset is at most `ceiling`.
pub(super) fn line<const TOP: u8, const N: usize>(values: &[f32; N], ceiling: f32) -> Line {
    let (low, high) = values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    let low = low.min(ceiling);
    let mut best = Line {
        scale: 0.0,
        offset: low,
    };
    if high - low < NEGLIGIBLE {
        return best;
    }
    let mut best_error = best.error::<TOP, N>(values);
    // Shares of the whole span that the codes cover, around its middle: coarse grids gain by cutting both ends off.
    let (first, step, count) = match TOP {
        ..4 => (0.7, 0.07, 6_u8),
        4..16 => (0.88, 0.04, 5),
        _ => (0.95, 0.025, 4),
    };
    let middle = (low + high) / 2.0;
    for share in (0..count).map(|at| first + step * f32::from(at)) {
        let span = share * (high - low);
        let mut line = Line {
            scale: span / f32::from(TOP),
            offset: (middle - span / 2.0).min(ceiling),
        };
        for _ in 0..2 {
            line = line.refined::<TOP, N>(values, ceiling);
        }
        let error = line.error::<TOP, N>(values);
        if error < best_error {
            (best_error, best) = (error, line);
        }
    }
    best
}
