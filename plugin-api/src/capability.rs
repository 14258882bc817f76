//! Optional capabilities.

/// A capability of a backend or a model that carries its own layout.
#[derive(Debug)]
pub struct AnyCapability {
    _private: (),
}

/// Why a capability could not be taken.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct CapabilityError(pub String);
