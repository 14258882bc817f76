//! The contract between the Backplane host and its plugins, and the plugin author's SDK.

#![allow(non_local_definitions, unused_braces)]

pub mod capability;
pub mod sdk;
pub mod types;

pub use capability::{AnyCapability, CapabilityError};
pub use sdk::*;
pub use types::*;
