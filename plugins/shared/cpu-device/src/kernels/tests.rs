//! Every fast kernel against its scalar twin, and against itself with other numbers of rows and tokens.

use super::*;
use crate::activations::{quantise_row32, quantise_row256, quantise_wide};
use proptest::prelude::*;

fn fast() -> impl Iterator<Item = Isa> {
    Isa::ALL
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar && isa.is_supported())
}

/// A tensor of random blocks: bytes as they come, but with scales that are ordinary numbers.
fn blocks(ty: TensorType, count: usize, seed: u64, extreme: bool) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let mut bytes: Vec<u8> = (0..count * ty.block_bytes()).map(|_| next()).collect();
    if extreme {
        let fill = if seed.is_multiple_of(2) { 0xff } else { 0x80 };
        bytes.fill(fill);
    }
    let half = |sign: u8, byte: u8| -> [u8; 2] {
        half::f16::from_f32(
            (f32::from(byte) + 1.0) / 4096.0 * if sign & 1 == 1 { -1.0 } else { 1.0 },
        )
        .to_le_bytes()
    };
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let (a, b, c, d) = (next(), next(), next(), next());
        match ty {
            TensorType::F32 => {
                block.copy_from_slice(&((f32::from(a) - 128.0) / 77.0).to_le_bytes())
            }
            TensorType::F16 => block.copy_from_slice(&half(a, b)),
            TensorType::BF16 => block.copy_from_slice(&[b, 0x3e | (a & 0x81)]),
            TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q5_0 => {
                block[..2].copy_from_slice(&half(a, b))
            }
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => {
                block[..2].copy_from_slice(&half(a, b));
                block[2..4].copy_from_slice(&half(c, d));
            }
            TensorType::Q2_K => {
                block[80..82].copy_from_slice(&half(a, b));
                block[82..].copy_from_slice(&half(c, d));
            }
            TensorType::Q3_K | TensorType::Q6_K | TensorType::TQ1_0 | TensorType::TQ2_0 => {
                let at = block.len() - 2;
                block[at..].copy_from_slice(&half(a, b));
            }
            TensorType::MXFP4 => block[0] = 120 + a % 8,
            TensorType::IQ1_M => {
                // The scale's bits are the upper four of four numbers.
                let bits = u16::from_le_bytes(half(a, b));
                for i in 0..4 {
                    let nibble = (bits >> (4 * i)) as u8 & 15;
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                }
            }
            TensorType::IQ4_NL
            | TensorType::IQ4_XS
            | TensorType::IQ2_XXS
            | TensorType::IQ2_XS
            | TensorType::IQ2_S
            | TensorType::IQ3_XXS
            | TensorType::IQ3_S
            | TensorType::IQ1_S => block[..2].copy_from_slice(&half(a, b)),
        }
    }
    bytes
}

/// Activations in the form that a type wants.
struct Owned {
    floats: Vec<f32>,
    int32: Vec<Group32>,
    int256: Vec<Group256>,
    wide32: Vec<Wide>,
    wide256: Vec<Wide>,
}

impl Owned {
    fn new(x: &[f32], cols: usize) -> Self {
        let mut int32 = vec![];
        let mut int256 = vec![];
        let (mut wide32, mut wide256) = (vec![], vec![]);
        for row in x.chunks_exact(cols) {
            let mut groups = vec![Group32::ZERO; cols.div_ceil(128)];
            if cols.is_multiple_of(32) {
                quantise_row32(Isa::Scalar, row, &mut groups);
            }
            int32.extend(groups);
            let mut groups = vec![Group256::ZERO; cols / 256];
            if cols.is_multiple_of(256) {
                quantise_row256(Isa::Scalar, row, &mut groups);
            }
            int256.extend(groups);
            for (elements, all) in [(32, &mut wide32), (256, &mut wide256)] {
                let mut groups = vec![Wide::ZERO; cols.div_ceil(128)];
                if cols.is_multiple_of(elements) {
                    quantise_wide(Isa::Scalar, row, elements, &mut groups);
                }
                all.extend(groups);
            }
        }
        Self {
            floats: x.to_vec(),
            int32,
            int256,
            wide32,
            wide256,
        }
    }

    fn operand(&self, kind: ActivationKind) -> Operand<'_> {
        match kind {
            ActivationKind::Float => Operand::Float(&self.floats),
            ActivationKind::Int32 => Operand::Int32(&self.int32),
            ActivationKind::Int256 => Operand::Int256(&self.int256),
            ActivationKind::Wide32 => Operand::Wide(&self.wide32, kind),
            ActivationKind::Wide256 => Operand::Wide(&self.wide256, kind),
        }
    }
}

fn matmul(isa: Isa, ty: TensorType, weights: &[u8], cols: usize, x: &[f32]) -> Vec<f32> {
    let rows = weights.len() / ty.row_bytes(cols).unwrap();
    let tokens = x.len() / cols;
    let x = Owned::new(x, cols);
    let mut out = vec![f32::NAN; rows * tokens];
    let place = Out {
        start: out.as_mut_ptr(),
        stride: rows,
    };
    // SAFETY: `out` has a place for every row and token.
    unsafe {
        Tile::new(
            ty,
            weights,
            cols,
            x.operand(activation_kind(isa, ty, tokens)),
            tokens,
            place,
        )
    }
    .run(
        isa,
        &mut Scratch::new(&mut vec![Line([0; 64]); scratch_lines(isa, cols)]),
    );
    out
}

fn cols_of(ty: TensorType, blocks: usize) -> usize {
    match ty.block_elems() {
        1 => 7 * blocks,
        elems => elems * blocks,
    }
}

/// What a dot product could be at most: the sum of the magnitudes of its terms.
fn magnitude(ty: TensorType, row: &[u8], x: &[f32]) -> f32 {
    let mut values = vec![0.0; x.len()];
    ty.dequantize(row, &mut values);
    values.iter().zip(x).map(|(w, x)| (w * x).abs()).sum()
}

fn activations(len: usize, seed: u64, extreme: bool) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let one = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        if extreme {
            unit.signum() * 3.0
        } else {
            unit * 5.0
        }
    };
    (0..len).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fast_kernels_agree_with_the_scalar_ones(
        blocks_in_row in 1usize..11, rows in 1usize..8, tokens in 1usize..20, seed: u64, extreme: bool, loud: bool,
    ) {
        for ty in TensorType::ALL {
            let cols = cols_of(*ty, blocks_in_row);
            let weights = blocks(*ty, rows * cols / ty.block_elems(), seed, extreme);
            let x = activations(tokens * cols, seed, loud);
            let truth = matmul(Isa::Scalar, *ty, &weights, cols, &x);
            for isa in fast() {
                let found = matmul(isa, *ty, &weights, cols, &x);
                for t in 0..tokens {
                    for r in 0..rows {
                        let row = &weights[r * ty.row_bytes(cols).unwrap()..][..ty.row_bytes(cols).unwrap()];
                        // Parts that cancel (a minimum against its products) round at their own size: hence the factor.
                        let bound = 4e-6 * (magnitude(*ty, row, &x[t * cols..][..cols]) + 1.0) ;
                        let (a, b) = (found[t * rows + r], truth[t * rows + r]);
                        prop_assert!((a - b).abs() <= bound, "{ty} {isa:?} row {r} token {t}: {a}, scalar {b}, bound {bound}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_result_depends_on_its_row_and_token_only(
        blocks_in_row in 1usize..8, rows in 1usize..40, tokens in 1usize..90, seed: u64,
    ) {
        for ty in TensorType::ALL {
            let cols = cols_of(*ty, blocks_in_row);
            let bytes = ty.row_bytes(cols).unwrap();
            let weights = blocks(*ty, rows * cols / ty.block_elems(), seed, false);
            let x = activations(tokens * cols, seed, false);
            for isa in fast() {
                let together = matmul(isa, *ty, &weights, cols, &x);
                // The first and the last, and some between.
                for t in (0..tokens).rev().step_by(1 + tokens / 8) {
                    for r in (0..rows).rev().step_by(1 + rows / 8) {
                        let alone = matmul(isa, *ty, &weights[r * bytes..][..bytes], cols, &x[t * cols..][..cols]);
                        prop_assert_eq!(alone[0].to_bits(), together[t * rows + r].to_bits(), "{} {:?}", ty, isa);
                    }
                }
            }
        }
    }
}

/// With scales of one and small numbers every sum is a whole number that a float holds: kernels must agree exactly.
#[test]
fn whole_numbers_are_exact() {
    let [one, four, eight] = [1.0, 4.0, 8.0].map(|scale| half::f16::from_f32(scale).to_le_bytes());
    let integer = |ty: &&TensorType| activation_kind(Isa::Scalar, **ty, 1) != ActivationKind::Float;
    for ty in TensorType::ALL.iter().filter(integer) {
        for seed in 0..40u64 {
            let cols = ty.block_elems()
                * (1 + seed as usize % 5).min(if ty.block_elems() == 256 { 1 } else { 5 });
            let mut weights = blocks(*ty, 3 * cols / ty.block_elems(), seed, seed % 4 == 3);
            for block in weights.chunks_exact_mut(ty.block_bytes()) {
                match ty {
                    TensorType::Q6_K => {
                        block[208..].copy_from_slice(&one);
                        // Small scales keep the sums within 24 bits.
                        block[192..208].iter_mut().for_each(|scale| *scale &= 7);
                    }
                    TensorType::Q2_K => {
                        block[80..].copy_from_slice(&[one, one].concat());
                        block[..16].iter_mut().for_each(|scales| *scales &= 0x77);
                    }
                    // As for Q6_K; upper bits of 2 make the smallest scale zero.
                    TensorType::Q3_K => {
                        block[108..].copy_from_slice(&one);
                        block[96..104].iter_mut().for_each(|scales| *scales &= 0x77);
                        block[104..108].fill(0xaa);
                    }
                    TensorType::IQ4_XS => {
                        block[..2].copy_from_slice(&one);
                        block[2..4].fill(0xaa);
                        block[4..8].iter_mut().for_each(|scales| *scales &= 0x11);
                    }
                    // The block's scale makes up for values that are eighths or quarters; small codes of scales, as above.
                    TensorType::IQ2_XXS => {
                        block[..2].copy_from_slice(&eight);
                        block[2..]
                            .iter_mut()
                            .skip(7)
                            .step_by(8)
                            .for_each(|last| *last &= 0x1f);
                    }
                    TensorType::IQ2_XS | TensorType::IQ2_S => {
                        block[..2].copy_from_slice(&eight);
                        let at = block.len() - 8;
                        block[at..].iter_mut().for_each(|scales| *scales &= 0x11);
                    }
                    TensorType::IQ3_XXS => {
                        block[..2].copy_from_slice(&four);
                        block[66..]
                            .iter_mut()
                            .skip(3)
                            .step_by(4)
                            .for_each(|last| *last &= 0x1f);
                    }
                    TensorType::IQ3_S => {
                        block[..2].copy_from_slice(&one);
                        block[106..].iter_mut().for_each(|scales| *scales &= 0x11);
                    }
                    TensorType::IQ1_S => block[..2].copy_from_slice(&eight),
                    TensorType::IQ1_M => {
                        let bits = u16::from_le_bytes(eight);
                        for i in 0..4 {
                            let nibble = (bits >> (4 * i)) as u8 & 15;
                            block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                        }
                    }
                    TensorType::TQ1_0 | TensorType::TQ2_0 => {
                        let at = block.len() - 2;
                        block[at..].copy_from_slice(&one);
                    }
                    // Twice the values, half the scale.
                    TensorType::MXFP4 => block[0] = 128,
                    TensorType::Q4_1 | TensorType::Q5_1 => {
                        block[..4].copy_from_slice(&[one, one].concat())
                    }
                    TensorType::Q4_K | TensorType::Q5_K => {
                        block[..4].copy_from_slice(&[one, one].concat());
                        block[4..12].iter_mut().for_each(|scales| *scales &= 7);
                        block[12..16].iter_mut().for_each(|scales| *scales &= 0x37);
                    }
                    _ => block[..2].copy_from_slice(&one),
                }
            }
            // Every block holds the largest number, so that the scale of activations is one.
            let mut x: Vec<f32> = activations(2 * cols, seed, false)
                .iter()
                .map(|x| (x * 6.0).round())
                .collect();
            let large = if seed % 2 == 0 { 16_256.0 } else { -16_256.0 };
            x.iter_mut()
                .skip(seed as usize % 32)
                .step_by(ty.block_elems())
                .for_each(|x| *x = large);
            let truth = matmul(Isa::Scalar, *ty, &weights, cols, &x);
            assert!(truth.iter().all(|sum| sum.fract() == 0.0));
            for isa in fast() {
                assert_eq!(matmul(isa, *ty, &weights, cols, &x), truth, "{ty} {isa:?}");
            }
        }
    }
}

/// The portable kernels for whole numbers of 16 bits, on whichever machine the tests run.
#[test]
fn whole_numbers_of_16_bits_agree_with_the_scalar_kernels() {
    let products = |a: &[i16; 32], b: &[i16; 32]| {
        let products = a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b));
        products.sum::<i32>()
    };
    let mut types = 0;
    for ty in TensorType::ALL {
        for seed in 0..12u64 {
            let (cols, rows, tokens) = (
                cols_of(*ty, 1 + seed as usize % 5),
                3,
                1 + 3 * seed as usize % 11,
            );
            let weights = blocks(*ty, rows * cols / ty.block_elems(), seed, seed % 4 == 3);
            let x = activations(tokens * cols, seed, seed % 3 == 2);
            let kind = match kernel(*ty).activations {
                ActivationKind::Int32 => ActivationKind::Wide32,
                _ => ActivationKind::Wide256,
            };
            let mut found = vec![f32::NAN; rows * tokens];
            let out = Out {
                start: found.as_mut_ptr(),
                stride: rows,
            };
            macro_rules! run {
                ($block:ident) => {{
                    let owned = Owned::new(&x, cols);
                    let x = owned.operand(kind);
                    let tile = {
                        // SAFETY: `found` has a place for every row and token.
                        unsafe { Tile::new(*ty, &weights, cols, x, tokens, out) }
                    };
                    whole::matmul::<$block>(&tile, products);
                }};
            }
            whole::with_whole!(*ty, run, continue);
            types += usize::from(seed == 0);
            let truth = matmul(Isa::Scalar, *ty, &weights, cols, &x);
            for (i, (a, b)) in found.iter().zip(&truth).enumerate() {
                let row = &weights[i % rows * ty.row_bytes(cols).unwrap()..]
                    [..ty.row_bytes(cols).unwrap()];
                let bound = 4e-6 * (magnitude(*ty, row, &x[i / rows * cols..][..cols]) + 1.0);
                assert!(
                    (a - b).abs() <= bound,
                    "{ty}: {a}, scalar {b}, bound {bound}"
                );
            }
        }
    }
    assert_eq!(types, 10);
}

/// The scalar kernels against dequantised weights and activations.
#[test]
fn the_scalar_kernels_are_what_the_blocks_mean() {
    for ty in TensorType::ALL {
        let cols = cols_of(*ty, 3);
        let weights = blocks(*ty, cols / ty.block_elems(), 7, false);
        let mut values = vec![0.0; cols];
        ty.dequantize(&weights, &mut values);
        let x = activations(cols, 3, false);
        let found = matmul(Isa::Scalar, *ty, &weights, cols, &x)[0];
        let exact: f64 = values
            .iter()
            .zip(&x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum();
        // Half a step of the activations (5 / 16256 / 2) a term.
        let integer = activation_kind(Isa::Scalar, *ty, 1) != ActivationKind::Float;
        let sum: f64 = values.iter().map(|w| f64::from(w.abs())).sum();
        let bound = sum * if integer { 5.0 / 32_000.0 } else { 1e-5 };
        assert!(
            (f64::from(found) - exact).abs() <= bound,
            "{ty}: {found}, exactly {exact}"
        );
    }
}
