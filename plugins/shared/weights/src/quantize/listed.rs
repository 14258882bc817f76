//! Types whose codes stand for the numbers of a list: IQ4_NL, MXFP4, and -1, 0, 1.

use super::Quantize;
use super::plain::{around_zero, nibbles};
use super::search::{Grid, half};
use crate::blocks::{
    BlockIQ4NL, BlockMxfp4, BlockTQ1_0, BlockTQ2_0, E2M1_DOUBLED, Half, IQ4_LEVELS,
};

/// The sixteen levels of IQ4.
pub(super) struct Levels;

impl Grid for Levels {
    const LOW: f32 = IQ4_LEVELS[0] as f32;
    const HIGH: f32 = IQ4_LEVELS[15] as f32;
    const SWEEP: (f32, f32, u8) = (0.8, 0.05, 8);

    #[inline(always)]
    fn nearest(value: f32) -> f32 {
        let mut level = Self::LOW;
        for pair in IQ4_LEVELS.windows(2) {
            let (below, above) = (f32::from(pair[0]), f32::from(pair[1]));
            level += if value > (below + above) / 2.0 {
                above - below
            } else {
                0.0
            };
        }
        level
    }
}

/// The code of one of the sixteen levels.
pub(super) fn level_code(level: f32) -> u8 {
    IQ4_LEVELS.partition_point(|other| f32::from(*other) < level) as u8
}

impl Quantize for BlockIQ4NL {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, codes) = around_zero::<Levels>(values, level_code)?;
        Some(BlockIQ4NL {
            d,
            qs: nibbles(&codes),
        })
    }
}

impl Quantize for BlockMxfp4 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let peak = values
            .iter()
            .fold(0.0_f64, |peak, value| peak.max(f64::from(*value).abs()));
        // The largest value of a block is 6 times its scale, 12 times half of it.
        let exponent = if peak == 0.0 {
            -127
        } else {
            (peak / 6.0).log2().ceil() as i32
        };
        let mut best = (f64::INFINITY, 0, [0; 32]);
        for exponent in [exponent, exponent - 1] {
            let exponent = exponent.clamp(-127, 127);
            let half_scale = 2.0_f64.powi(exponent - 1);
            let mut codes = [0; 32];
            let mut error = 0.0;
            for (code, value) in codes.iter_mut().zip(values) {
                let value = f64::from(*value) / half_scale;
                let magnitude = (0..8)
                    .min_by(|a, b| {
                        let off = |code: usize| (f64::from(E2M1_DOUBLED[code]) - value.abs()).abs();
                        off(*a).total_cmp(&off(*b))
                    })
                    .unwrap_or(0);
                let off = (f64::from(E2M1_DOUBLED[magnitude]) - value.abs()) * half_scale;
                error += off * off;
                *code = magnitude as u8 | if value < 0.0 { 8 } else { 0 };
            }
            if error < best.0 {
                best = (error, (exponent + 127) as u8, codes);
            }
        }
        Some(BlockMxfp4 {
            e: best.1,
            qs: nibbles(&best.2),
        })
    }
}

/// The scale with the least squared error for -1, 0 and 1: the mean magnitude of the largest values, as many as gain most.
fn ternary(values: &[f32]) -> Option<(Half, impl Fn(usize) -> u8)> {
    let mut magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    magnitudes.sort_unstable_by(|a, b| b.total_cmp(a));
    let (mut sum, mut best_gain, mut best) = (0.0_f64, 0.0, 0.0);
    for (at, magnitude) in magnitudes.iter().enumerate() {
        sum += f64::from(*magnitude);
        let gain = sum * sum / (at + 1) as f64;
        if gain > best_gain {
            (best_gain, best) = (gain, sum / (at + 1) as f64);
        }
    }
    let d = half(best as f32)?;
    let limit = d.to_f32() / 2.0;
    let values = values.to_vec();
    let digit = move |i: usize| match values[i] {
        value if value > limit => 2,
        value if value < -limit => 0,
        _ => 1,
    };
    Some((d, digit))
}

impl Quantize for BlockTQ1_0 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, digit) = ternary(values)?;
        // Byte `i` of `width`, whose digits are those of every `width`th value from `start`, as a fraction of 256 rounded up.
        let byte = |start: usize, width: usize, count: usize, i: usize| {
            let number = (0..5).fold(0_u16, |number, n| {
                let digit = if n < count {
                    digit(start + width * n + i)
                } else {
                    0
                };
                3 * number + u16::from(digit)
            });
            ((number * 256).div_ceil(243)) as u8
        };
        Some(BlockTQ1_0 {
            qs: std::array::from_fn(|i| match i {
                0..32 => byte(0, 32, 5, i),
                _ => byte(160, 16, 5, i - 32),
            }),
            qh: std::array::from_fn(|i| byte(240, 4, 4, i)),
            d,
        })
    }
}

impl Quantize for BlockTQ2_0 {
    fn quantize(values: &[f32]) -> Option<Self> {
        let (d, digit) = ternary(values)?;
        Some(BlockTQ2_0 {
            qs: std::array::from_fn(|byte| {
                let (half, i) = (byte / 32, byte % 32);
                (0..4).fold(0, |bits, k| {
                    bits | digit(128 * half + 32 * k + i) << (2 * k)
                })
            }),
            d,
        })
    }
}
