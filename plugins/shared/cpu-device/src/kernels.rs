//! Products of activations with weights in their stored layout: one row of [`TABLE`] per storage type.
//!
//! A kernel works on a [`Tile`]: some neighbouring rows of one matrix times some tokens. The tile is the door for faster
//! schemes: a kernel may repack its rows on the way, as long as every result stays what it is for one row and one token.

use crate::activations::{Group32, Group256, Wide};
use crate::isa::Isa;
use crate::memory::Zeroed;
use backplane_weights::TensorType;

#[cfg_attr(target_arch = "x86_64", path = "kernels/x86/mod.rs")]
#[cfg_attr(target_arch = "aarch64", path = "kernels/neon.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    path = "kernels/portable.rs"
)]
mod fast;

#[cfg(target_arch = "x86_64")]
pub(crate) use fast::total;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(any(test, target_arch = "aarch64"))]
mod whole;

/// In which form a storage type wants the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ActivationKind {
    /// As they are.
    Float,
    /// Whole numbers in blocks of 32: [`Group32`].
    Int32,
    /// Whole numbers in blocks of 256: [`Group256`].
    Int256,
    /// Those of `Int32` as [`Wide`].
    Wide32,
    /// Those of `Int256` as [`Wide`].
    Wide256,
}

/// Activations of all tokens of a tile, row by row.
#[derive(Clone, Copy)]
pub(crate) enum Operand<'a> {
    /// `[tokens, cols]`.
    Float(&'a [f32]),
    /// `[tokens, ceil(cols / 128)]`.
    Int32(&'a [Group32]),
    /// `[tokens, cols / 256]`.
    Int256(&'a [Group256]),
    /// `[tokens, ceil(cols / 128)]`, and which of both kinds.
    Wide(&'a [Wide], ActivationKind),
}

impl Operand<'_> {
    fn kind(&self) -> ActivationKind {
        match self {
            Operand::Float(_) => ActivationKind::Float,
            Operand::Int32(_) => ActivationKind::Int32,
            Operand::Int256(_) => ActivationKind::Int256,
            Operand::Wide(_, kind) => *kind,
        }
    }

    fn len(&self) -> usize {
        match self {
            Operand::Float(x) => x.len(),
            Operand::Int32(x) => x.len(),
            Operand::Int256(x) => x.len(),
            Operand::Wide(x, _) => x.len(),
        }
    }
}

impl ActivationKind {
    /// The kind with the same whole numbers that the table of kernels has.
    fn narrow(self) -> Self {
        match self {
            ActivationKind::Wide32 => ActivationKind::Int32,
            ActivationKind::Wide256 => ActivationKind::Int256,
            other => other,
        }
    }

    /// Elements of the operand (floats or groups) that one token's row of `cols` takes.
    pub(crate) fn row_len(self, cols: usize) -> usize {
        match self {
            ActivationKind::Float => cols,
            ActivationKind::Int32 => cols.div_ceil(Group32::ELEMS),
            ActivationKind::Int256 => cols / Group256::ELEMS,
            ActivationKind::Wide32 | ActivationKind::Wide256 => cols.div_ceil(Wide::ELEMS),
        }
    }
}

/// Tokens from which kernels that can repack rows of types with blocks of 32 do. Fewer meet rows that are turned in registers, as many as
/// sixteen at once; repacking costs as much as some sixty tokens of these.
pub(crate) const WIDE32_FROM: usize = 65;

/// A line of scratch memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

// SAFETY: bytes; alignment 64.
unsafe impl Zeroed for Line {}

/// Memory that the tiles of one thread may use, one after the other.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct Scratch<'a> {
    /// What a tile left there for others of its job: that job's number.
    left: &'a mut Line,
    lines: &'a mut [Line],
}

impl<'a> Scratch<'a> {
    /// # Panics
    /// When there is no line.
    pub(crate) fn new(lines: &'a mut [Line]) -> Self {
        let (left, lines) = lines.split_first_mut().expect("as `scratch_lines` says");
        Self { left, lines }
    }
}

/// Lines of scratch that tiles with these columns take at most.
pub(crate) fn scratch_lines(isa: Isa, cols: usize) -> usize {
    1 + fast::scratch(isa, cols)
}

/// Where results go: row `r`, token `t` at `start + t * stride + r`.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) start: *mut f32,
    pub(crate) stride: usize,
}

/// A piece of work: rows of a matrix times tokens. Made by [`Tile::new`] only, which checks the sizes, so that kernels can
/// rely on them.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    ty: TensorType,
    /// `[rows, row_bytes]`.
    weights: &'a [u8],
    rows: usize,
    row_bytes: usize,
    cols: usize,
    x: Operand<'a>,
    tokens: usize,
    out: Out,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    /// Not zero: tiles of the same number have the same operand, as far as they take the same kind.
    job: u64,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    /// Where the quarters of the rows begin that are likely to be multiplied next.
    next: Option<[*const u8; 4]>,
}

impl<'a> Tile<'a> {
    /// `weights` is a whole number of rows of `cols` values of type `ty`.
    ///
    /// # Safety
    /// `out` is valid for writes at `t * stride + r` for all rows and tokens of the tile, and nobody else uses these places
    /// as long as the tile is in use.
    ///
    /// # Panics
    /// When the operand is of another kind than `ty` takes, or the sizes don't fit.
    pub(crate) unsafe fn new(
        ty: TensorType,
        weights: &'a [u8],
        cols: usize,
        x: Operand<'a>,
        tokens: usize,
        out: Out,
    ) -> Self {
        let kind = x.kind();
        let row_bytes = ty
            .row_bytes(cols)
            .filter(|bytes| *bytes > 0)
            .expect("a row is a whole number of blocks");
        assert!(
            weights.len().is_multiple_of(row_bytes),
            "{} bytes in rows of {row_bytes}",
            weights.len()
        );
        assert!(
            kind.narrow() == kernel(ty).activations && x.len() == tokens * kind.row_len(cols),
            "{ty}: {tokens} tokens of {cols}"
        );
        Self {
            ty,
            weights,
            rows: weights.len() / row_bytes,
            row_bytes,
            cols,
            x,
            tokens,
            out,
            job: 0,
            next: None,
        }
    }

    /// With the rows that are likely to be multiplied next, which are asked for when this tile ends.
    pub(crate) fn before(self, weights: &[u8], row_bytes: usize) -> Self {
        let quarter = weights.len() / row_bytes / 4 * row_bytes;
        let starts = std::array::from_fn(|part| weights.as_ptr().wrapping_add(part * quarter));
        Self {
            next: Some(starts),
            ..self
        }
    }

    /// One of several that take the same operand: with the same number, which has not been used for others with this scratch.
    pub(crate) fn of_job(self, job: u64) -> Self {
        Self { job, ..self }
    }

    /// Computes `out[t, r] = x[t] · weights[r]`. The scratch has as many lines as [`scratch_lines`] says.
    ///
    /// # Panics
    /// When the operand is not of the kind that [`activation_kind`] gives for these kernels and as many tokens, or the scratch is
    /// short.
    pub(crate) fn run(&self, isa: Isa, scratch: &mut Scratch<'_>) {
        match fast::kernel(isa, self.ty) {
            Some(kernel) => fast::run(kernel, self, scratch),
            None => self.run_scalar(kernel(self.ty).scalar),
        }
    }

    fn run_scalar(&self, dot: scalar::Dot) {
        let kind = self.x.kind();
        let len = kind.row_len(self.cols);
        for r in 0..self.rows {
            let row = &self.weights[r * self.row_bytes..][..self.row_bytes];
            for t in 0..self.tokens {
                let x = match self.x {
                    Operand::Float(x) => Operand::Float(&x[t * len..][..len]),
                    Operand::Int32(x) => Operand::Int32(&x[t * len..][..len]),
                    Operand::Int256(x) => Operand::Int256(&x[t * len..][..len]),
                    Operand::Wide(..) => unreachable!("only fast kernels ask for wide groups"),
                };
                let result = dot(row, x);
                // SAFETY: the place belongs to this tile, by the promise made to `new`.
                unsafe { self.out.start.add(t * self.out.stride + r).write(result) };
            }
        }
    }
}

/// How the products with one storage type are computed; fast kernels are those of `fast::kernel`.
struct Kernel {
    ty: TensorType,
    activations: ActivationKind,
    scalar: scalar::Dot,
}

macro_rules! table {
    ($($ty:ident, $activations:ident, $scalar:path;)*) => {
        const TABLE: &[Kernel] = &[$(Kernel {
            ty: TensorType::$ty,
            activations: ActivationKind::$activations,
            scalar: $scalar,
        }),*];
    };
}

table! {
    // type, activations, scalar twin
    F32,  Float,  scalar::dot_f32;
    F16,  Float,  scalar::dot_f16;
    BF16, Float,  scalar::dot_bf16;
    Q8_0, Int32,  scalar::dot_q8_0;
    Q4_0, Int32,  scalar::dot_q4_0;
    Q4_1, Int32,  scalar::dot_q4_1;
    Q5_0, Int32,  scalar::dot_q5_0;
    Q5_1, Int32,  scalar::dot_q5_1;
    Q4_K, Int256, scalar::dot_q4_k;
    Q5_K, Int256, scalar::dot_q5_k;
    Q6_K, Int256, scalar::dot_q6_k;
    Q2_K, Int256, scalar::dot_q2_k;
    Q3_K, Int256, scalar::dot_q3_k;
    IQ4_NL, Int32, scalar::dot_iq4_nl;
    IQ4_XS, Int256, scalar::dot_iq4_xs;
    MXFP4, Int32, scalar::dot_mxfp4;
    TQ1_0, Int256, scalar::dot_tq1_0;
    TQ2_0, Int256, scalar::dot_tq2_0;
    IQ2_XXS, Int256, scalar::dot_iq2_xxs;
    IQ2_XS, Int256, scalar::dot_iq2_xs;
    IQ2_S, Int256, scalar::dot_iq2_s;
    IQ3_XXS, Int256, scalar::dot_iq3_xxs;
    IQ3_S, Int256, scalar::dot_iq3_s;
    IQ1_S, Int256, scalar::dot_iq1_s;
    IQ1_M, Int256, scalar::dot_iq1_m;
}

const _: () = assert!(TABLE.len() == TensorType::ALL.len());

fn kernel(ty: TensorType) -> &'static Kernel {
    TABLE
        .iter()
        .find(|kernel| kernel.ty == ty)
        .expect("the table has a row for every storage type")
}

/// A set of forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActivationKinds {
    pub(crate) float: bool,
    pub(crate) int32: bool,
    pub(crate) int256: bool,
    pub(crate) wide32: bool,
    pub(crate) wide256: bool,
}

impl ActivationKinds {
    /// Those in which matrices of these types want so many tokens' activations.
    pub(crate) fn of(isa: Isa, tokens: usize, types: impl IntoIterator<Item = TensorType>) -> Self {
        let mut kinds = Self::default();
        for ty in types {
            match activation_kind(isa, ty, tokens) {
                ActivationKind::Float => kinds.float = true,
                ActivationKind::Int32 => kinds.int32 = true,
                ActivationKind::Int256 => kinds.int256 = true,
                ActivationKind::Wide32 => kinds.wide32 = true,
                ActivationKind::Wide256 => kinds.wide256 = true,
            }
        }
        kinds
    }
}

/// In which form a storage type wants the activations of so many tokens.
pub(crate) fn activation_kind(isa: Isa, ty: TensorType, tokens: usize) -> ActivationKind {
    match (kernel(ty).activations, fast::wide(isa, ty, tokens)) {
        (ActivationKind::Int32, true) => ActivationKind::Wide32,
        (ActivationKind::Int256, true) => ActivationKind::Wide256,
        (kind, _) => kind,
    }
}
