//! How one function body becomes code for several instruction sets, on x86-64.

use crate::isa::Isa;

/// Whether this processor and operating system run a set of kernels.
pub(crate) fn supports(isa: Isa) -> bool {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    match isa {
        Isa::Scalar => true,
        Isa::Avx2 => avx2,
        Isa::Avx512 => {
            avx2 && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
        }
    }
}

/// Sixteen halves as floats.
#[inline(always)]
pub(crate) fn halves<const FUSED: bool>(halves: &[u16; 16], floats: &mut [f32; 16]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    if !FUSED {
        *floats = halves.map(|half| half::f16::from_bits(half).to_f32_const());
        return;
    }
    for (floats, halves) in floats.chunks_exact_mut(8).zip(halves.chunks_exact(8)) {
        // SAFETY: eight halves are read and eight floats written, and `per_isa!` gives `FUSED` only to code for processors
        // with F16C.
        unsafe {
            let wide = _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()));
            _mm256_storeu_ps(floats.as_mut_ptr(), wide);
        }
    }
}

/// `per_isa!(fn name = body(arg: Type, …))`: a safe function `name(isa, arg, …)` that runs `body::<FUSED>(arg, …)`
/// compiled for the instruction set. `FUSED` says whether multiply-add is one instruction there.
macro_rules! per_isa {
    ($(#[$doc:meta])* fn $name:ident = $body:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body::<true>($($arg),*)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body::<true>($($arg),*)
            }
            match isa {
                $crate::isa::Isa::Scalar => $body::<false>($($arg),*),
                // SAFETY: the function needs AVX2, FMA and F16C, and nothing else: an executable carries an `Isa` only
                // after `Isa::is_supported` has found its features.
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above, for AVX-512 F, BW, DQ and VL.
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
