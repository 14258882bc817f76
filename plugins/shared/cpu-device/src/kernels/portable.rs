//! Where there are no fast kernels: the table's places are filled with the scalar ones.

use super::{Line, Tile, scalar};
use crate::isa::Isa;
use backplane_weights::TensorType;

/// A row's dot product.
pub(super) type Matmul = scalar::Dot;

/// Whether a tile takes its activations as wide groups: never.
pub(super) fn wide(_isa: Isa, _ty: TensorType, _tokens: usize) -> bool {
    false
}

/// Lines of scratch that a tile takes: none.
pub(super) fn scratch(_isa: Isa, _cols: usize) -> usize {
    0
}

/// Runs a tile.
pub(super) fn run(dot: Matmul, tile: &Tile<'_>, _scratch: &mut [Line]) {
    tile.run_scalar(dot);
}

macro_rules! scalar_for {
    ($($avx2:ident, $avx512:ident = $scalar:ident;)*) => {
        pub(super) use scalar::{$($scalar as $avx2, $scalar as $avx512),*};
    };
}

scalar_for! {
    matmul_f32_avx2, matmul_f32_avx512 = dot_f32;
    matmul_f16_avx2, matmul_f16_avx512 = dot_f16;
    matmul_bf16_avx2, matmul_bf16_avx512 = dot_bf16;
    matmul_q8_0_avx2, matmul_q8_0_avx512 = dot_q8_0;
    matmul_q4_0_avx2, matmul_q4_0_avx512 = dot_q4_0;
    matmul_q4_1_avx2, matmul_q4_1_avx512 = dot_q4_1;
    matmul_q5_0_avx2, matmul_q5_0_avx512 = dot_q5_0;
    matmul_q5_1_avx2, matmul_q5_1_avx512 = dot_q5_1;
    matmul_q4_k_avx2, matmul_q4_k_avx512 = dot_q4_k;
    matmul_q5_k_avx2, matmul_q5_k_avx512 = dot_q5_k;
    matmul_q6_k_avx2, matmul_q6_k_avx512 = dot_q6_k;
    matmul_q2_k_avx2, matmul_q2_k_avx512 = dot_q2_k;
    matmul_q3_k_avx2, matmul_q3_k_avx512 = dot_q3_k;
    matmul_iq4_nl_avx2, matmul_iq4_nl_avx512 = dot_iq4_nl;
    matmul_iq4_xs_avx2, matmul_iq4_xs_avx512 = dot_iq4_xs;
    matmul_mxfp4_avx2, matmul_mxfp4_avx512 = dot_mxfp4;
    matmul_tq1_0_avx2, matmul_tq1_0_avx512 = dot_tq1_0;
    matmul_tq2_0_avx2, matmul_tq2_0_avx512 = dot_tq2_0;
    matmul_iq2_xxs_avx2, matmul_iq2_xxs_avx512 = dot_iq2_xxs;
    matmul_iq2_xs_avx2, matmul_iq2_xs_avx512 = dot_iq2_xs;
    matmul_iq2_s_avx2, matmul_iq2_s_avx512 = dot_iq2_s;
    matmul_iq3_xxs_avx2, matmul_iq3_xxs_avx512 = dot_iq3_xxs;
    matmul_iq3_s_avx2, matmul_iq3_s_avx512 = dot_iq3_s;
    matmul_iq1_s_avx2, matmul_iq1_s_avx512 = dot_iq1_s;
    matmul_iq1_m_avx2, matmul_iq1_m_avx512 = dot_iq1_m;
}
