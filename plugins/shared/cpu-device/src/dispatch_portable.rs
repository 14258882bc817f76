//! How one function body becomes code for several instruction sets, where the compiler needs no more than to be told whether
//! multiply-add is one instruction: everywhere but on x86-64.

use crate::isa::Isa;

/// Whether this machine runs a set of kernels.
pub(crate) fn supports(isa: Isa) -> bool {
    isa == Isa::Scalar || isa == Isa::Neon && cfg!(target_arch = "aarch64")
}

/// Sixteen halves as floats.
#[inline(always)]
pub(crate) fn halves<const FUSED: bool>(halves: &[u16; 16], floats: &mut [f32; 16]) {
    *floats = halves.map(|half| half::f16::from_bits(half).to_f32_const());
}

/// Sixteen floats rounded to halves, to even where two are as near.
#[inline(always)]
pub(crate) fn floats<const FUSED: bool>(floats: &[f32; 16], halves: &mut [u16; 16]) {
    *halves = floats.map(|float| half::f16::from_f32_const(float).to_bits());
}

/// Asks for memory that will be read soon: nothing, where no instruction is known for it.
#[inline(always)]
pub(crate) fn ask<T>(_at: *const T) {}

/// Multiply-adds of one step of [`dots`].
pub(crate) fn dots_per_step(_isa: Isa) -> u64 {
    crate::peaks::PLAIN_DOTS as u64
}

/// Multiplies 8-bit ones with ones out of registers, `steps` times; the sum of all products.
pub(crate) fn dots(_isa: Isa, steps: u64) -> i64 {
    crate::peaks::plain_dots(steps)
}

/// `per_isa!(fn name = body(arg: Type, …))`: a function `name(isa, arg, …)` that runs `body::<FUSED>(arg, …)`. `FUSED` says whether
/// multiply-add is one instruction.
macro_rules! per_isa {
    ($(#[$doc:meta])* fn $name:ident = $body:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa {
                $crate::isa::Isa::Neon => $body::<true>($($arg),*),
                _ => $body::<false>($($arg),*),
            }
        }
    };
}
