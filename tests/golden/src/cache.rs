//! A device with a cache of some type.

use backplane_program::{CacheType, Device, DeviceError, Executable, Limits, Program};
use backplane_weights::Weights;

/// The device inside, with keys and values stored as another type, whatever the limits say.
pub struct WithCache<'a>(pub &'a dyn Device, pub CacheType);

impl Device for WithCache<'_> {
    fn name(&self) -> String {
        format!("{}, cache {}", self.0.name(), self.1)
    }

    fn compile(
        &self,
        program: &Program,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executable>, DeviceError> {
        let limits = Limits {
            cache_type: self.1,
            ..limits
        };
        self.0.compile(program, weights, limits)
    }
}
