//! How one function body becomes code for several instruction sets, on x86-64.

use crate::isa::Isa;

/// Whether this processor and operating system run a set of kernels.
pub(crate) fn supports(isa: Isa) -> bool {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    match isa {
        Isa::Scalar => true,
        Isa::Neon => false,
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

/// Sixteen floats rounded to halves, to even where two are as near.
#[inline(always)]
pub(crate) fn floats<const FUSED: bool>(floats: &[f32; 16], halves: &mut [u16; 16]) {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_storeu_si128, _mm256_cvtps_ph, _mm256_loadu_ps,
    };
    if !FUSED {
        *halves = floats.map(|float| half::f16::from_f32_const(float).to_bits());
        return;
    }
    for (halves, floats) in halves.chunks_exact_mut(8).zip(floats.chunks_exact(8)) {
        // SAFETY: eight floats are read and eight halves written, and `per_isa!` gives `FUSED` only to code for processors
        // with F16C.
        unsafe {
            let narrow =
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(floats.as_ptr()));
            _mm_storeu_si128(halves.as_mut_ptr().cast(), narrow);
        }
    }
}

/// Asks for two lines of memory (128 bytes) that will be read soon. Never faults, whatever the address.
#[inline(always)]
pub(crate) fn ask<T>(at: *const T) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor can, and the address need not be one of ours.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
        _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(64));
    }
}

/// Accumulators of [`dots`]: enough to hide the latency of an instruction behind the others.
const SUMS: usize = 12;

/// Multiply-adds of one step of [`dots`].
pub(crate) fn dots_per_step(isa: Isa) -> u64 {
    let lanes: usize = match isa {
        Isa::Scalar | Isa::Neon => return crate::peaks::PLAIN_DOTS as u64,
        Isa::Avx2 => 32,
        Isa::Avx512 => 64,
    };
    (lanes * SUMS) as u64
}

/// Multiplies 8-bit ones with ones out of registers, `steps` times on every accumulator, with the instructions of the integer
/// kernels; the sum of all products.
pub(crate) fn dots(isa: Isa, steps: u64) -> i64 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx2")]
    fn avx2(steps: u64) -> i64 {
        let (y, ones) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
        let xs = [[1_i8; 32]; SUMS];
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for _ in 0..steps {
            // What is read may be another each time, as far as the compiler knows: no product is made only once.
            for (sum, x) in sums.iter_mut().zip(black_box(&xs)) {
                // SAFETY: 32 bytes are read from an array of 32 bytes.
                let x = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
                let pairs = _mm256_maddubs_epi16(y, x);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        let mut total = 0;
        for sum in sums {
            let mut lanes = [0_i32; 8];
            // SAFETY: 32 bytes are written into an array of 32 bytes.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
            total += lanes.iter().map(|&lane| i64::from(lane)).sum::<i64>();
        }
        total
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn avx512(steps: u64) -> i64 {
        let (x, y) = (
            black_box(_mm512_set1_epi8(1)),
            black_box(_mm512_set1_epi8(1)),
        );
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, y);
            }
        }
        sums.into_iter()
            .map(|sum| {
                let mut lanes = [0_i32; 16];
                // SAFETY: 64 bytes are written into an array of 64 bytes.
                unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), sum) };
                lanes.iter().map(|&lane| i64::from(lane)).sum::<i64>()
            })
            .sum()
    }

    match isa {
        Isa::Scalar | Isa::Neon => crate::peaks::plain_dots(steps),
        // SAFETY: the function needs AVX2: a device carries an `Isa` only after `Isa::is_supported` has found its features.
        Isa::Avx2 => unsafe { avx2(steps) },
        // SAFETY: as above, for AVX-512 F and VNNI.
        Isa::Avx512 => unsafe { avx512(steps) },
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
                $crate::isa::Isa::Scalar | $crate::isa::Isa::Neon => $body::<false>($($arg),*),
                // SAFETY: the function needs AVX2, FMA and F16C, and nothing else: an executable carries an `Isa` only
                // after `Isa::is_supported` has found its features.
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above, for AVX-512 F, BW, DQ and VL.
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
    };
}
