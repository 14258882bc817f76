//! Kernels for x86-64.

mod avx2;
mod avx512;
mod points;
mod ternary;

pub(crate) use avx512::total;

use super::{Line, Scratch, Tile};
use crate::dispatch::ask;
use crate::isa::Isa;
use backplane_weights::TensorType;

/// A kernel for one storage type and instruction set.
///
/// # Safety
/// The processor has the instruction set's features, and the tile is of that storage type.
pub(super) type Matmul = unsafe fn(&Tile<'_>, &mut Scratch<'_>);

impl Scratch<'_> {
    /// The lines, of which nothing is left for others.
    fn alone(&mut self) -> &mut [Line] {
        self.left.0 = [0; 64];
        self.lines
    }

    /// The lines, and whether they hold what a tile of this job left there; others of the job may expect it from now on.
    fn of_job(&mut self, job: u64) -> (&mut [Line], bool) {
        let (number, _) = self.left.0.as_chunks_mut::<8>();
        let there = job != 0 && u64::from_ne_bytes(number[0]) == job;
        number[0] = job.to_ne_bytes();
        (self.lines, there)
    }
}

macro_rules! table {
    ($($ty:ident $avx2:ident $avx512:ident;)*) => {
        /// The kernel of a type and instruction set; the scalar one where there is none.
        pub(super) fn kernel(isa: Isa, ty: TensorType) -> Option<Matmul> {
            let kernels: [Matmul; 2] = match ty {
                $(TensorType::$ty => [avx2::$avx2, avx512::$avx512],)*
            };
            match isa {
                Isa::Avx2 => Some(kernels[0]),
                Isa::Avx512 => Some(kernels[1]),
                Isa::Scalar | Isa::Neon => None,
            }
        }
    };
}

table! {
    F32 matmul_f32_avx2 matmul_f32_avx512;
    F16 matmul_f16_avx2 matmul_f16_avx512;
    BF16 matmul_bf16_avx2 matmul_bf16_avx512;
    Q8_0 matmul_q8_0_avx2 matmul_q8_0_avx512;
    Q4_0 matmul_q4_0_avx2 matmul_q4_0_avx512;
    Q4_1 matmul_q4_1_avx2 matmul_q4_1_avx512;
    Q5_0 matmul_q5_0_avx2 matmul_q5_0_avx512;
    Q5_1 matmul_q5_1_avx2 matmul_q5_1_avx512;
    Q4_K matmul_q4_k_avx2 matmul_q4_k_avx512;
    Q5_K matmul_q5_k_avx2 matmul_q5_k_avx512;
    Q6_K matmul_q6_k_avx2 matmul_q6_k_avx512;
    Q2_K matmul_q2_k_avx2 matmul_q2_k_avx512;
    Q3_K matmul_q3_k_avx2 matmul_q3_k_avx512;
    IQ4_NL matmul_iq4_nl_avx2 matmul_iq4_nl_avx512;
    IQ4_XS matmul_iq4_xs_avx2 matmul_iq4_xs_avx512;
    MXFP4 matmul_mxfp4_avx2 matmul_mxfp4_avx512;
    TQ1_0 matmul_tq1_0_avx2 matmul_tq1_0_avx512;
    TQ2_0 matmul_tq2_0_avx2 matmul_tq2_0_avx512;
    IQ2_XXS matmul_iq2_xxs_avx2 matmul_iq2_xxs_avx512;
    IQ2_XS matmul_iq2_xs_avx2 matmul_iq2_xs_avx512;
    IQ2_S matmul_iq2_s_avx2 matmul_iq2_s_avx512;
    IQ3_XXS matmul_iq3_xxs_avx2 matmul_iq3_xxs_avx512;
    IQ3_S matmul_iq3_s_avx2 matmul_iq3_s_avx512;
    IQ1_S matmul_iq1_s_avx2 matmul_iq1_s_avx512;
    IQ1_M matmul_iq1_m_avx2 matmul_iq1_m_avx512;
}

/// Whether a tile of this type and of so many tokens takes its activations as [`Wide`](crate::activations::Wide) groups.
pub(super) fn wide(isa: Isa, ty: TensorType, tokens: usize) -> bool {
    isa == Isa::Avx512 && avx512::wide(ty, tokens)
}

/// Lines of scratch that a tile with these columns takes at most.
pub(super) fn scratch(isa: Isa, cols: usize) -> usize {
    match isa {
        Isa::Avx512 => avx512::lines(cols),
        _ => 0,
    }
}

/// Runs a tile with the kernel of its type.
pub(super) fn run(matmul: Matmul, tile: &Tile<'_>, scratch: &mut Scratch<'_>) {
    // SAFETY: `Tile::run` picks the kernel by the tile's type and by an `Isa`, which an executable holds only after `Isa::is_supported` has found its features.
    unsafe { matmul(tile, scratch) }
}

/// How far ahead of what is read weights are asked for, in bytes.
const AHEAD: usize = 1024;

/// How far behind what is read lies what is asked for, in a row of a quarter of a tile: [`AHEAD`] bytes, or, where the quarter ends before, as far into what
/// the next tile begins with. `row` is the first row after it, in the quarter; `begins` is where the quarter does.
#[inline(always)]
fn far(tile: &Tile<'_>, quarter: usize, row: usize, part: usize) -> isize {
    let left = (quarter - row) * tile.row_bytes;
    match tile.next {
        Some(next) if left < AHEAD => {
            let end = tile
                .weights
                .as_ptr()
                .wrapping_add((part + 1) * quarter * tile.row_bytes);
            (next[part] as isize)
                .wrapping_sub(end as isize)
                .wrapping_add(AHEAD as isize)
        }
        _ => AHEAD as isize,
    }
}

/// Asks for the weights that are read [`AHEAD`] bytes after the `bytes` bytes at `p`. Beyond the end of a matrix that does no
/// harm: asking never faults.
#[inline(always)]
fn ahead(p: *const u8, bytes: usize) {
    soon(p.wrapping_add(AHEAD), bytes);
}

/// Asks for the `bytes` bytes at `p`.
#[inline(always)]
fn soon(p: *const u8, bytes: usize) {
    for lines in (0..bytes).step_by(128) {
        ask(p.wrapping_add(lines));
    }
}
