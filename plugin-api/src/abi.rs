//! What crosses the boundary, in types whose layout is checked when a module is loaded.
//!
//! Authors write against [`sdk`](crate::sdk), hosts call it; this layer is for the two adapters
//! ([`export`](crate::export) and [`import`](crate::import)) and for the loader.
//!
//! # How a module is found and checked
//!
//! A module exports one symbol, [`ROOT_SYMBOL`], that holds the contract version it was built against, the layout of
//! [`PluginModule`] (and through it of every type here), and a function that gives the [`PluginModule`]. A host compares
//! majors, checks the layouts with the **older side as the interface** ([`layout::check`]), and only then asks for the
//! module.
//!
//! # How the contract grows
//!
//! Within a major version:
//!
//! * A by-value struct of [`data`] is frozen: no field is added, removed, reordered or retyped. What a later minor
//!   needs to say travels in the struct's JSON text (`extra`, `more`), which both sides read by key.
//! * A code ([`codes`]) gains constants. A side that meets a number it does not know uses the fallback stated with the
//!   code.
//! * A trait gains methods **at its end, after the one marked `#[sabi(last_prefix_field)]`, each with a default body**.
//!   On a module that lacks the method the default runs. The mark stays where it was in 1.0.
//! * [`PluginModule`] gains fields after the one marked `#[sabi(last_prefix_field)]`; reading one from a module that
//!   lacks it gives `None`.
//! * Anything larger is a new trait behind a [capability](crate::capability), which carries its own layout: a mismatch
//!   costs that capability and not the module.
//!
//! Everything else is a new major version, which an older host refuses with both versions named, and a newer one too.
//! The contract's version is this crate's version ([`CONTRACT_VERSION`]).
//!
//! # Rules of calls
//!
//! * Threads: a [`Backend`](traits::Backend) or [`TextModel`](traits::TextModel) is called from any thread, many at
//!   once. A sink is called by one thread at a time.
//! * Ownership: what is returned belongs to the receiver, and is freed by the code that made it (each owned type
//!   carries its own destructor). Arguments are borrowed for the call.
//! * Lifetime: modules are never unloaded. A model may outlive the backend that made it.
//! * Panics: never cross. A panic in a module is an error with the code [`ErrorCode::PANICKED`](codes::ErrorCode::PANICKED);
//!   one in a host's sink stops the generation, and the host's adapter reports it.

pub mod capabilities;
pub mod codes;
pub mod data;
pub mod layout;
pub mod traits;

pub use abi_stable;

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RResult, RStr};

/// Version of the contract that this crate states: its own version.
pub const CONTRACT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The compiler that built this crate.
pub const RUSTC_VERSION: &str = env!("BACKPLANE_RUSTC_VERSION");

/// The symbol that every module exports.
pub const ROOT_SYMBOL: &str = abi_stable::library::ROOT_MODULE_LOADER_NAME;

/// What a module gives its host. Since 1.0.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef)))]
#[sabi(missing_field(option))]
pub struct PluginModule {
    /// [`CONTRACT_VERSION`] of the crate the module was built against.
    pub contract_version: RStr<'static>,
    /// The plugin's name, as [`sdk::Backend::name`](crate::sdk::Backend::name) gives it.
    pub name: RStr<'static>,
    /// The plugin's own version (semver).
    pub version: RStr<'static>,
    /// The compiler that built it, as `rustc --version` prints.
    pub rustc: RStr<'static>,
    /// Whether a panic unwinds. A module built with `panic = "abort"` would end the host, so that hosts refuse it.
    pub panic_unwind: bool,
    /// Makes the backend. The host calls it once; a second call makes a second, independent backend.
    #[sabi(last_prefix_field)]
    pub new_backend: extern "C" fn(
        data::Context,
        traits::HostServicesObject,
    ) -> RResult<traits::BackendObject, data::Error>,
    // Fields of later minor versions go here.
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}

    const BASE_NAME: &'static str = "backplane_plugin";
    const NAME: &'static str = "backplane_plugin";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
