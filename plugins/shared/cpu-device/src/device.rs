//! The device: which kernels, how many threads.

use crate::isa::{Isa, VARIABLE};
use crate::run::CpuExecutable;
use backplane_program::{Device, DeviceError, Executable, Limits, Program};
use backplane_weights::Weights;

/// Most threads of one executable.
const MOST_THREADS: usize = 1024;

/// How to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the caller's own included; `None` takes as many as the machine has processors. [`Limits::threads`] comes
    /// first where it is not 0.
    pub threads: Option<usize>,
    /// Kernels; `None` takes what the environment variable `BACKPLANE_CPU` says, else the fastest the machine runs.
    pub isa: Option<Isa>,
}

/// This machine's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuDevice {
    isa: Isa,
    threads: usize,
}

impl CpuDevice {
    /// The CPU with default options.
    ///
    /// # Errors
    /// `BACKPLANE_CPU` asks for something else than `scalar`, `avx2` or `avx512`, or for what this machine does not run.
    pub fn detect() -> Result<Self, DeviceError> {
        Self::with_options(CpuOptions::default())
    }

    /// The CPU with these options.
    ///
    /// # Errors
    /// The kernels asked for don't run here, or the number of threads is 0 or beyond reason.
    pub fn with_options(options: CpuOptions) -> Result<Self, DeviceError> {
        let isa = match options.isa {
            Some(isa) => isa.checked()?,
            None => {
                let asked =
                    std::env::var_os(VARIABLE).map(|name| name.to_string_lossy().into_owned());
                Isa::choose(asked.as_deref())?
            }
        };
        let threads = match options.threads {
            Some(threads) => checked(threads)?,
            None => std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MOST_THREADS),
        };
        Ok(Self { isa, threads })
    }

    /// The kernels in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that an executable gets where its limits leave the choice.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// One line about this CPU for people: kernels in use, kernels available, processors.
    #[must_use]
    pub fn features() -> String {
        let available: Vec<_> = Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_supported())
            .map(Isa::label)
            .collect();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        format!("kernels {}; {processors} processors", available.join(", "))
    }
}

pub(crate) fn checked(threads: usize) -> Result<usize, DeviceError> {
    if threads == 0 || threads > MOST_THREADS {
        return Err(DeviceError::Failed {
            device: "cpu".into(),
            message: format!("{threads} threads, expected 1 to {MOST_THREADS}"),
        });
    }
    Ok(threads)
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!(
            "cpu ({}, {} thread{plural})",
            self.isa.label(),
            self.threads
        )
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let threads = match limits.threads {
            0 => self.threads,
            threads => checked(threads)?,
        };
        Ok(Box::new(CpuExecutable::new(
            program, weights, limits, self.isa, threads,
        )?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked_and_named() {
        let device = CpuDevice::with_options(CpuOptions {
            threads: Some(3),
            isa: Some(Isa::Scalar),
        })
        .unwrap();
        assert_eq!(
            (device.name().as_str(), device.threads(), device.isa()),
            ("cpu (scalar, 3 threads)", 3, Isa::Scalar)
        );
        for threads in [0, MOST_THREADS + 1] {
            let error = CpuDevice::with_options(CpuOptions {
                threads: Some(threads),
                isa: None,
            })
            .unwrap_err();
            assert!(error.to_string().contains("expected 1 to"), "{error}");
        }
        assert!(CpuDevice::features().contains("scalar"));
    }
}
