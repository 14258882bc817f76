//! Which instruction set the kernels use, chosen when the device is made.

use crate::dispatch;
use backplane_program::DeviceError;

/// A set of kernels.
///
/// | name | needs |
/// |---|---|
/// | `scalar` | nothing |
/// | `avx2` | AVX2, FMA, F16C |
/// | `avx512` | AVX-512 F, BW, DQ, VL and VNNI, besides the above |
/// | `neon` | aarch64 |
///
/// Processors with AVX-512 but without VNNI take the `avx2` kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code: the truth that the others are tested against.
    Scalar,
    /// 256-bit kernels.
    Avx2,
    /// 512-bit kernels with integer dot products.
    Avx512,
    /// 128-bit kernels of aarch64.
    Neon,
}

/// Environment variable that forces a set of kernels.
pub(crate) const VARIABLE: &str = "BACKPLANE_CPU";

impl Isa {
    /// All, from the plainest to the fastest.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon];

    /// The name that `BACKPLANE_CPU` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
        }
    }

    /// What is printed for people: `avx512-vnni` for [`Isa::Avx512`].
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512-vnni",
            other => other.name(),
        }
    }

    /// Whether this processor and operating system run it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        dispatch::supports(self)
    }

    /// The fastest set this machine runs.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|isa| isa.is_supported())
            .unwrap_or(Isa::Scalar)
    }

    /// The set asked for by name; the best where `name` is `None`.
    pub(crate) fn choose(name: Option<&str>) -> Result<Self, DeviceError> {
        let Some(name) = name else {
            return Ok(Self::best());
        };
        let isa = Self::ALL.into_iter().find(|isa| isa.name() == name);
        isa.ok_or_else(|| unusable(format!("{VARIABLE} is {name:?}")))
            .and_then(Self::checked)
    }

    /// The set itself if this machine runs it.
    pub(crate) fn checked(self) -> Result<Self, DeviceError> {
        if self.is_supported() {
            return Ok(self);
        }
        Err(unusable(format!(
            "this processor does not run the {} kernels",
            self.name()
        )))
    }
}

fn unusable(found: String) -> DeviceError {
    let names: Vec<_> = Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_supported())
        .map(Isa::name)
        .collect();
    DeviceError::Failed {
        device: "cpu".into(),
        message: format!("{found}, expected one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_kernels_and_errors_name_the_choices() {
        assert_eq!(Isa::choose(Some("scalar")).unwrap(), Isa::Scalar);
        assert_eq!(Isa::choose(None).unwrap(), Isa::best());
        let message = Isa::choose(Some("sse9")).unwrap_err().to_string();
        assert!(
            message.contains("\"sse9\"") && message.contains("one of scalar"),
            "{message}"
        );
    }

    #[test]
    fn a_set_that_the_machine_lacks_is_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.checked().is_ok(), isa.is_supported());
        }
    }
}
