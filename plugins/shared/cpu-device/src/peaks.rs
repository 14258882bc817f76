//! What this machine could do at most: bytes read, and whole numbers multiplied, by so many threads.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Isa;
use crate::pool::Pool;
use backplane_program::DeviceError;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Instant;

/// Largest buffer that is read: no cache of today holds a part of it that counts.
const MOST_BYTES: usize = 1 << 30;
/// A pass reads a small buffer several times: at least so many bytes.
const PASS_BYTES: usize = 32 << 20;
/// Passes over the buffer, of which the fastest counts.
const READ_PASSES: u64 = 9;
/// Passes of multiply-adds.
const DOT_PASSES: u64 = 6;
/// Words ahead of what is read that are asked for: as the kernels do.
const AHEAD: usize = 128;
/// Steps of [`dispatch::dots`] in a pass of each thread.
const DOT_STEPS: u64 = 2_000_000;

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes of memory read per second, all threads together.
    pub read_bytes_per_s: f64,
    /// Multiply-adds of 8-bit whole numbers per second out of registers, all threads together.
    pub multiply_adds_per_s: f64,
    /// Bytes of the buffer that was read.
    pub buffer: usize,
    /// Threads, the caller's own included.
    pub threads: usize,
    /// Which kernels it was measured for.
    pub isa: Isa,
}

impl CpuDevice {
    /// Measures what `threads` threads (0: as many as the device has) reach: reading a buffer of `bytes` bytes (at most
    /// 1 GiB of it), and multiplying with the instructions of the device's kernels. Of several passes the fastest counts.
    /// `progress` is told passes done and of how many; a break gives `None`.
    ///
    /// # Errors
    /// The number of threads is beyond reason, or memory or threads are short.
    pub fn peaks(
        &self,
        threads: usize,
        bytes: u64,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Option<Peaks>, DeviceError> {
        let threads = match threads {
            0 => self.threads(),
            threads => crate::device::checked(threads)?,
        };
        let isa = self.isa();
        let bytes =
            usize::try_from(bytes).map_or(MOST_BYTES, |bytes| bytes.clamp(4096, MOST_BYTES));
        let mut buffer: Vec<u64> = Vec::new();
        buffer
            .try_reserve_exact(bytes / 8)
            .map_err(|_| failed(format!("no memory for a buffer of {bytes} bytes")))?;
        // Written, so that each page is there: untouched ones would all be the same page of zeros.
        buffer.extend(0..bytes as u64 / 8);
        let buffer = buffer.as_slice();
        let part = buffer.len().div_ceil(threads);
        let turns = PASS_BYTES.div_ceil(bytes);
        let total = READ_PASSES + DOT_PASSES;
        let mut told = |done: u64| progress(done, total);
        if told(0).is_break() {
            return Ok(None);
        }
        let mut pool = Pool::new(threads)
            .map_err(|error| failed(format!("no thread to measure with: {error}")))?;
        let reading = |thread: usize| {
            let own = buffer.chunks(part).nth(thread).unwrap_or(&[]);
            for _ in 0..turns {
                black_box(read(isa, black_box(own)));
            }
        };
        let Some(reading) = fastest(&mut pool, READ_PASSES, &mut told, &reading) else {
            return Ok(None);
        };
        let multiplying = |_| {
            black_box(dispatch::dots(isa, black_box(DOT_STEPS)));
        };
        let mut told = |done| told(READ_PASSES + done);
        let Some(multiplying) = fastest(&mut pool, DOT_PASSES, &mut told, &multiplying) else {
            return Ok(None);
        };
        let multiply_adds = dispatch::dots_per_step(isa) * DOT_STEPS * threads as u64;
        Ok(Some(Peaks {
            read_bytes_per_s: (buffer.len() * 8 * turns) as f64 / reading,
            multiply_adds_per_s: multiply_adds as f64 / multiplying,
            buffer: bytes,
            threads,
            isa,
        }))
    }
}

fn failed(message: String) -> DeviceError {
    DeviceError::Failed {
        device: "cpu".into(),
        message,
    }
}

/// Seconds of the fastest of several passes after one more that warms up; a pass is `work(thread)` for every thread. `told`
/// is told passes done; a break ends it with `None`.
fn fastest(
    pool: &mut Pool,
    passes: u64,
    told: &mut dyn FnMut(u64) -> ControlFlow<()>,
    work: &(dyn Fn(usize) + Sync),
) -> Option<f64> {
    let threads = pool.threads();
    pool.run(threads, &|thread, _| work(thread));
    let mut best = f64::INFINITY;
    for pass in 0..passes {
        let begun = Instant::now();
        pool.run(threads, &|thread, _| work(thread));
        best = best.min(begun.elapsed().as_secs_f64());
        if told(pass + 1).is_break() {
            return None;
        }
    }
    // A clock too coarse for the pass measures nothing: no figure divides by zero.
    Some(best.max(1e-9))
}

/// Multiply-adds of one step of [`plain_dots`].
pub(crate) const PLAIN_DOTS: usize = 64;

/// As [`dispatch::dots`], in portable code.
pub(crate) fn plain_dots(steps: u64) -> i64 {
    let ones = [1_i8; PLAIN_DOTS];
    let mut sums = [0_i32; PLAIN_DOTS];
    for _ in 0..steps {
        let (x, y) = (black_box(&ones), black_box(&ones));
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += i32::from(*x) * i32::from(*y);
        }
    }
    sums.iter().map(|&sum| i64::from(sum)).sum()
}

per_isa! {
    /// All words, so that none is left out.
    fn read = read_words(words: &[u64]) -> u64
}

/// Places in which a thread reads at once: one stream alone is slower on most processors, for it waits at the end of each page.
const STREAMS: usize = 4;
/// Words that a stream takes at a time.
const WORDS: usize = 16;

#[inline(always)]
fn read_words<const FUSED: bool>(words: &[u64]) -> u64 {
    let each = words.len() / STREAMS / WORDS * WORDS;
    let (streams, rest) = words.split_at(STREAMS * each);
    let mut sums = [[0_u64; WORDS]; STREAMS];
    for at in (0..each).step_by(WORDS) {
        for (stream, sums) in sums.iter_mut().enumerate() {
            let words = &streams[stream * each + at..][..WORDS];
            dispatch::ask(words.as_ptr().wrapping_add(AHEAD));
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum ^= word;
            }
        }
    }
    let all = sums.as_flattened().iter().chain(rest);
    all.fold(0, |sum, word| sum ^ word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::CpuOptions;

    fn device(isa: Isa) -> CpuDevice {
        CpuDevice::with_options(CpuOptions {
            threads: Some(2),
            isa: Some(isa),
        })
        .unwrap()
    }

    #[test]
    fn every_kind_of_kernel_has_its_peaks() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let mut last = (0, 0);
            let mut progress = |done, total| {
                assert!(
                    done >= last.0 && done <= total,
                    "{done} of {total} after {last:?}"
                );
                last = (done, total);
                ControlFlow::Continue(())
            };
            let peaks = device(isa)
                .peaks(1, 1 << 20, &mut progress)
                .unwrap()
                .unwrap();
            assert_eq!((peaks.buffer, peaks.threads, peaks.isa), (1 << 20, 1, isa));
            // No machine reads or multiplies so slowly, nor so fast.
            for figure in [peaks.read_bytes_per_s, peaks.multiply_adds_per_s] {
                assert!((1e5..1e16).contains(&figure), "{peaks:?}");
            }
            assert_eq!(last.0, last.1);
        }
    }

    #[test]
    fn sizes_are_bounded_and_stopping_stops() {
        let device = device(Isa::Scalar);
        let mut go = |_, _| ControlFlow::Continue(());
        let peaks = device.peaks(0, 0, &mut go).unwrap().unwrap();
        assert_eq!((peaks.buffer, peaks.threads), (4096, 2));
        assert!(device.peaks(1 << 20, 4096, &mut go).is_err());
        for stop_at in [0, 1, READ_PASSES, READ_PASSES + 1] {
            let mut calls = 0;
            let mut stop = |done, _| {
                calls += 1;
                match done < stop_at {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            };
            assert_eq!(device.peaks(1, 4096, &mut stop).unwrap(), None);
            assert_eq!(calls, stop_at + 1);
        }
    }

    #[test]
    fn a_read_leaves_nothing_out() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let mut words: Vec<u64> = vec![0; 100];
            for at in 0..words.len() {
                words[at] = 1 << (at % 64);
                assert_eq!(read(isa, &words), 1 << (at % 64), "{isa:?}");
                words[at] = 0;
            }
        }
    }

    #[test]
    fn dots_count_what_they_say() {
        // Every lane adds 1 * 1 for each multiply-add, so that the sum is their number.
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
            let sum = u64::try_from(dispatch::dots(isa, 3)).unwrap();
            assert_eq!(sum, 3 * dispatch::dots_per_step(isa), "{isa:?}");
        }
    }
}
