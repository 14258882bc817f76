//! Types whose blocks of 256 values are groups with scales that are themselves stored as small numbers: Q2_K to Q6_K, IQ4_XS.
//!
//! Each group's scale (and minimum) is searched for as if it could be stored exactly. Then the block's scale of the scales is
//! chosen, each group takes the stored number nearby that fits its values best, and the scale of the scales is solved for
//! again with all codes known.

use super::Quantize;
use super::search::{Grid, Line, Normalised, Whole, error, line, reciprocal, scale};
use crate::blocks::{BlockIQ4XS, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, Half, Scales6};

use super::listed::{Levels, level_code};
use super::plain::nibbles;

/// How often the scale of the scales is solved for anew.
const ROUNDS: usize = 1;

/// A block of groups around zero.
struct Around<const N: usize, const GROUPS: usize> {
    d: Half,
    /// The groups' scales.
    scales: [i8; GROUPS],
    /// The levels, to be multiplied by `d` and the group's scale.
    levels: [[f32; N]; GROUPS],
}

/// The block of the least error found; scales lie in `lowest..=-lowest - 1`.
fn around<G: Grid, const N: usize, const GROUPS: usize>(
    values: &[f32],
    lowest: i8,
) -> Option<Around<N, GROUPS>> {
    let Some(block) = Normalised::<N, GROUPS>::new(values) else {
        return Some(Around {
            d: Half([0; 2]),
            scales: [0; GROUPS],
            levels: [[G::nearest(0.0); N]; GROUPS],
        });
    };
    let fits = block.groups.map(|values| scale::<G, N>(&values));
    let peak = fits.iter().fold(
        0.0_f32,
        |peak, fit| {
            if fit.abs() > peak.abs() { *fit } else { peak }
        },
    );
    let (low, high) = (f32::from(lowest), -f32::from(lowest) - 1.0);
    let mut best: Option<(f32, Around<N, GROUPS>)> = None;
    let mut wanted = peak / low;
    for round in 0..=ROUNDS {
        let (d, exact) = match round {
            0 => block.reaching(wanted)?,
            _ => block.stored(wanted)?,
        };
        let (mut sum, mut with_values, mut squares) = (0.0, 0.0, 0.0);
        let mut found = Around {
            d,
            scales: [0; GROUPS],
            levels: [[0.0; N]; GROUPS],
        };
        for (group, values) in block.groups.iter().enumerate() {
            let nearest = (fits[group] * reciprocal(exact)).round_ties_even();
            let (mut least, mut stored) = (f32::INFINITY, 0.0);
            for candidate in [nearest, nearest - 1.0, nearest + 1.0, 0.0] {
                let candidate = candidate.clamp(low, high);
                let error = error::<G, N>(values, exact * candidate);
                if error < least {
                    (least, stored) = (error, candidate);
                }
            }
            let inverse = reciprocal(exact * stored);
            let levels = values.map(|value| G::nearest(value * inverse));
            for (value, level) in values.iter().zip(levels) {
                with_values += value * stored * level;
                squares += (stored * level) * (stored * level);
            }
            sum += least;
            found.scales[group] = stored as i8;
            found.levels[group] = levels;
        }
        if best.as_ref().is_none_or(|(least, _)| sum < *least) {
            best = Some((sum, found));
        }
        if squares == 0.0 || with_values == 0.0 {
            break;
        }
        wanted = with_values / squares;
    }
    best.map(|(_, found)| found)
}

/// A block of groups with minima.
struct Above<const N: usize, const GROUPS: usize> {
    d: Half,
    dmin: Half,
    scales: [u8; GROUPS],
    minima: [u8; GROUPS],
    codes: [[u8; N]; GROUPS],
}

/// The block of the least error found: codes from 0 to `TOP`, scales and minima from 0 to `MOST`.
fn above<const TOP: u8, const MOST: u8, const N: usize, const GROUPS: usize>(
    values: &[f32],
) -> Option<Above<N, GROUPS>> {
    let Some(block) = Normalised::<N, GROUPS>::new(values) else {
        return Some(Above {
            d: Half([0; 2]),
            dmin: Half([0; 2]),
            scales: [0; GROUPS],
            minima: [0; GROUPS],
            codes: [[0; N]; GROUPS],
        });
    };
    let fits = block.groups.map(|values| line::<TOP, N>(&values, 0.0));
    let most = f32::from(MOST);
    let mut wanted = fits.iter().fold((0.0_f32, 0.0_f32), |(d, dmin), fit| {
        (d.max(fit.scale / most), dmin.max(-fit.offset / most))
    });
    let mut best: Option<(f32, Above<N, GROUPS>)> = None;
    for round in 0..=ROUNDS {
        let ((d, scale_unit), (dmin, minimum_unit)) = match round {
            0 => (block.reaching(wanted.0)?, block.reaching(wanted.1)?),
            _ => (block.stored(wanted.0)?, block.stored(wanted.1)?),
        };
        let mut found = Above {
            d,
            dmin,
            scales: [0; GROUPS],
            minima: [0; GROUPS],
            codes: [[0; N]; GROUPS],
        };
        let mut sum = 0.0;
        let mut sums = Normal::default();
        for (group, values) in block.groups.iter().enumerate() {
            let fit = fits[group];
            let scale = (fit.scale * reciprocal(scale_unit)).round_ties_even();
            let minimum = (-fit.offset * reciprocal(minimum_unit)).round_ties_even();
            let (mut least, mut stored) = (f32::INFINITY, (0.0, 0.0));
            for scale in [scale, scale - 1.0, scale + 1.0] {
                for minimum in [minimum, minimum - 1.0, minimum + 1.0] {
                    let scale = scale.clamp(0.0, most);
                    let minimum = minimum.clamp(0.0, most);
                    let line = Line {
                        scale: scale_unit * scale,
                        offset: -minimum_unit * minimum,
                    };
                    let error = line.error::<TOP, N>(values);
                    if error < least {
                        (least, stored) = (error, (scale, minimum));
                    }
                }
            }
            let line = Line {
                scale: scale_unit * stored.0,
                offset: -minimum_unit * stored.1,
            };
            let codes = line.codes::<TOP, N>(values);
            for (value, code) in values.iter().zip(codes) {
                sums.add(stored.0 * f32::from(code), -stored.1, *value);
            }
            sum += least;
            found.scales[group] = stored.0 as u8;
            found.minima[group] = stored.1 as u8;
            found.codes[group] = codes;
        }
        if best.as_ref().is_none_or(|(least, _)| sum < *least) {
            best = Some((sum, found));
        }
        match sums.solve() {
            Some(next) => wanted = next,
            None => break,
        }
    }
    best.map(|(_, found)| found)
}

/// The normal equations of `value = x * a + y * b` for `x` and `y`.
#[derive(Default)]
struct Normal {
    aa: f32,
    ab: f32,
    bb: f32,
    av: f32,
    bv: f32,
}

impl Normal {
    #[inline(always)]
    fn add(&mut self, a: f32, b: f32, value: f32) {
        self.aa += a * a;
        self.ab += a * b;
        self.bb += b * b;
        self.av += a * value;
        self.bv += b * value;
    }

    /// The solution, where there is one and neither number is negative.
    fn solve(&self) -> Option<(f32, f32)> {
        let determinant = self.aa * self.bb - self.ab * self.ab;
        let (x, y) = if determinant > 1e-6 * self.aa * self.bb {
            (
                (self.av * self.bb - self.bv * self.ab) / determinant,
                (self.bv * self.aa - self.av * self.ab) / determinant,
            )
        } else if self.bb == 0.0 && self.aa > 0.0 {
            (self.av / self.aa, 0.0)
        } else {
            return None;
        };
        (x >= 0.0 && y >= 0.0).then_some((x, y))
    }
}

/// Packs scales and minima as [`crate::blocks::k_scale_min`] reads them.
fn scales6(scales: &[u8; 8], minima: &[u8; 8]) -> Scales6 {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | (scales[i + 4] >> 4) << 6,
        4..8 => minima[i - 4] | (minima[i] >> 4) << 6,
        _ => (scales[i - 4] & 0x0f) | (minima[i - 4] & 0x0f) << 4,
    })
}

/// The lower four bits of 256 codes: each 32 bytes hold two groups, one in the low nibbles and the next in the high ones.
fn paired_nibbles(codes: &[[u8; 32]; 8]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let pair = i / 32 * 2;
        (codes[pair][i % 32] & 0x0f) | (codes[pair + 1][i % 32] & 0x0f) << 4
    })
}

/// The lower two bits of 256 codes, four to a byte.
fn two_bits(codes: &[[u8; 16]; 16]) -> [u8; 64] {
    std::array::from_fn(|byte| {
        let (half, i) = (byte / 32, byte % 32);
        (0..4).fold(0, |bits, k| {
            bits | (codes[8 * half + 2 * k + i / 16][i % 16] & 3) << (2 * k)
        })
    })
}

impl Quantize for BlockQ4K {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = above::<15, 63, 32, 8>(values)?;
        Some(BlockQ4K {
            d: found.d,
            dmin: found.dmin,
            scales: scales6(&found.scales, &found.minima),
            qs: paired_nibbles(&found.codes),
        })
    }
}

impl Quantize for BlockQ5K {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = above::<31, 63, 32, 8>(values)?;
        Some(BlockQ5K {
            d: found.d,
            dmin: found.dmin,
            scales: scales6(&found.scales, &found.minima),
            qh: std::array::from_fn(|i| {
                (0..8).fold(0, |bits, group| {
                    bits | (found.codes[group][i] >> 4) << group
                })
            }),
            qs: paired_nibbles(&found.codes),
        })
    }
}

impl Quantize for BlockQ2K {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = above::<3, 15, 16, 16>(values)?;
        Some(BlockQ2K {
            scales: std::array::from_fn(|group| found.scales[group] | found.minima[group] << 4),
            qs: two_bits(&found.codes),
            d: found.d,
            dmin: found.dmin,
        })
    }
}

impl Quantize for BlockQ3K {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = around::<Whole<-4, 3>, 16, 16>(values, -32)?;
        let codes = found
            .levels
            .map(|levels| levels.map(|level| (level + 4.0) as u8));
        let scales = found.scales.map(|scale| (scale + 32) as u8);
        Some(BlockQ3K {
            hmask: std::array::from_fn(|i| {
                (0..8).fold(0, |bits, k| {
                    bits | (codes[2 * k + i / 16][i % 16] >> 2) << k
                })
            }),
            qs: two_bits(&codes),
            scales: std::array::from_fn(|i| match i {
                0..8 => (scales[i] & 0x0f) | (scales[i + 8] & 0x0f) << 4,
                _ => (0..4).fold(0, |bits, quarter| {
                    bits | (scales[4 * quarter + i - 8] >> 4) << (2 * quarter)
                }),
            }),
            d: found.d,
        })
    }
}

impl Quantize for BlockQ6K {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = around::<Whole<-32, 31>, 16, 16>(values, -128)?;
        // Code of value `32 k + i` of a half.
        let code = |half: usize, k: usize, i: usize| {
            (found.levels[8 * half + 2 * k + i / 16][i % 16] + 32.0) as u8
        };
        Some(BlockQ6K {
            ql: std::array::from_fn(|byte| {
                let (half, k, i) = (byte / 64, byte / 32 % 2, byte % 32);
                (code(half, k, i) & 0x0f) | (code(half, k + 2, i) & 0x0f) << 4
            }),
            qh: std::array::from_fn(|byte| {
                let (half, i) = (byte / 32, byte % 32);
                (0..4).fold(0, |bits, k| bits | (code(half, k, i) >> 4) << (2 * k))
            }),
            scales: found.scales,
            d: found.d,
        })
    }
}

impl Quantize for BlockIQ4XS {
    fn quantize(values: &[f32]) -> Option<Self> {
        let found = around::<Levels, 32, 8>(values, -32)?;
        let scales = found.scales.map(|scale| (scale + 32) as u8);
        let mut qs = [0; 128];
        for (bytes, levels) in qs.chunks_exact_mut(16).zip(found.levels) {
            bytes.copy_from_slice(&nibbles(&levels.map(level_code)));
        }
        Some(BlockIQ4XS {
            d: found.d,
            scales_h: (0..8)
                .fold(0_u16, |bits, group| {
                    bits | u16::from(scales[group] >> 4) << (2 * group)
                })
                .to_le_bytes(),
            scales_l: std::array::from_fn(|i| {
                (scales[2 * i] & 0x0f) | (scales[2 * i + 1] & 0x0f) << 4
            }),
            qs,
        })
    }
}
