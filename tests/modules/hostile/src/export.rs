//! What `export_plugin!` writes, by hand, so that the versions and the beginning can be hostile too.

use crate::{act, backend, told};
use backplane_plugin_api::abi::abi_stable::std_types::{RResult, RStr};
use backplane_plugin_api::abi::traits::{BackendObject, HostServicesObject};
use backplane_plugin_api::abi::{
    CONTRACT_VERSION, PluginModule, PluginModuleRef, RUSTC_VERSION, data,
};
use backplane_plugin_api::export::{
    CheckTypeLayout, LibHeader, PrefixTypeTrait, RootModuleResult, call_root_module, new_backend,
};

extern "C" fn make(
    context: data::Context,
    services: HostServicesObject,
) -> RResult<BackendObject, data::Error> {
    new_backend(
        "hostile",
        env!("CARGO_PKG_VERSION"),
        &context,
        services,
        backend,
    )
}

fn module() -> PluginModuleRef {
    if let Some(word) = told("root") {
        act(&word, None);
    }
    // It lives as long as the module, which is never unloaded.
    let stated = |key: &str, true_one: &'static str| -> RStr<'static> {
        told(key).map_or(true_one, |text| text.leak()).into()
    };
    PrefixTypeTrait::leak_into_prefix(PluginModule {
        contract_version: stated("contract", CONTRACT_VERSION),
        name: "hostile".into(),
        version: stated("version", env!("CARGO_PKG_VERSION")),
        rustc: RUSTC_VERSION.into(),
        panic_unwind: cfg!(panic = "unwind"),
        new_backend: make,
    })
}

extern "C" fn root_module() -> RootModuleResult {
    call_root_module(module)
}

// SAFETY: no other symbol of a plugin has this name.
#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
static HEADER: LibHeader = {
    // SAFETY: `root_module` gives what `module` made, a `PluginModuleRef`.
    unsafe { LibHeader::from_constructor::<PluginModuleRef>(root_module, CheckTypeLayout::Yes) }
};

extern "C" fn constructor() {
    if let Some(word) = told("constructor") {
        act(&word, None);
    }
}

#[used]
// SAFETY: the section holds functions without arguments that the system's loader calls.
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static CONSTRUCTOR: extern "C" fn() = constructor;
