//! Opens a file whose headers are right: the system's loader, the contract's version and layout, the backend.

use super::c_door::Door;
use super::{LoadedPlugin, refuse};
use backplane_plugin_api::abi::abi_stable::StableAbi;
use backplane_plugin_api::abi::abi_stable::library::{AbiHeader, LibHeader};
use backplane_plugin_api::abi::abi_stable::library::{
    LibraryError, RootModuleError, lib_header_from_path,
};
use backplane_plugin_api::abi::abi_stable::std_types::RResult;
use backplane_plugin_api::abi::{CONTRACT_VERSION, PluginModuleRef, ROOT_SYMBOL, layout};
use backplane_plugin_api::c;
use backplane_plugin_api::import::{self, HostServices};
use backplane_plugin_api::{Context, Error, ErrorCode, Verdict, VerdictState};
use semver::Version;
use std::path::Path;
use std::sync::Arc;

const NOT_A_PLUGIN: &str =
    "name a module that was built with the Backplane SDK, or against its C header";
const REPORT: &str = "report this to the plugin's author";
const REBUILD: &str = "rebuild the plugin against this contract, or update Backplane";

/// Opens the module at `path`, an absolute path; `file` is what the system opens: the same, or a copy of it.
pub(super) fn open(
    path: &Path,
    file: &Path,
    context: &Context,
    services: Arc<dyn HostServices>,
) -> Result<LoadedPlugin, Verdict> {
    if let Some(plugin) = bind(file)? {
        return open_c(path, context, plugin);
    }
    // It is open already: this finds the same module again.
    let header = lib_header_from_path(file).map_err(|error| library_verdict(path, &error))?;
    let theirs = compatible_version(path, header)?;
    compatible_layout(path, header, &theirs)?;
    // SAFETY: the layout of the module's root was just found to be that of `PluginModuleRef`, grown at its end at most.
    let module = unsafe { header.init_root_module_with_unchecked_layout::<PluginModuleRef>() }
        .map_err(|error| library_verdict(path, &error))?;
    if !module.panic_unwind() {
        return Err(refuse(
            VerdictState::Incompatible,
            path,
            "built with panic = \"abort\": its first panic would end this program",
            "rebuild the plugin with panic = \"unwind\"",
        ));
    }
    check_name(path, module.name().as_str())?;
    check_version(path, module.version().as_str())?;
    if module.contract_version().as_str() != theirs.to_string() {
        let stated = module.contract_version();
        let what = format!("states contract {stated:.40}, but was built against {theirs}");
        return Err(refuse(VerdictState::Incompatible, path, what, REPORT));
    }
    let made = module.new_backend()(import::context(context), import::host_services(services));
    let backend = match made {
        RResult::ROk(object) => import::backend(object),
        RResult::RErr(error) => return Err(backend_verdict(path, &error.into())),
    };
    Ok(LoadedPlugin {
        name: module.name().into(),
        version: module.version().into(),
        contract_version: theirs.to_string(),
        rustc: module.rustc().into(),
        path: path.to_owned(),
        backend,
    })
}

/// Opens a module of the C door.
fn open_c(path: &Path, context: &Context, plugin: c::Plugin) -> Result<LoadedPlugin, Verdict> {
    // SAFETY: the function was looked up in the module, by the header's name, and modules are never unloaded.
    let entered = unsafe { Door::enter(plugin) };
    let (door, stated) =
        entered.map_err(|what| refuse(VerdictState::Incompatible, path, what, REBUILD))?;
    check_name(path, &stated.name)?;
    check_version(path, &stated.version)?;
    let backend = door
        .backend(context, &stated)
        .map_err(|error| backend_verdict(path, &error))?;
    Ok(LoadedPlugin {
        name: stated.name,
        version: stated.version,
        contract_version: stated.contract_version,
        rustc: String::new(),
        path: path.to_owned(),
        backend,
    })
}

/// Manifests and messages call a plugin by its name, and it is what duplicates are told by.
fn check_name(path: &Path, name: &str) -> Result<(), Verdict> {
    let right = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.is_empty() && name.len() <= 64 && name.bytes().all(right) {
        return Ok(());
    }
    Err(refuse(
        VerdictState::Incompatible,
        path,
        format!("states the name {name:?}; expected up to 64 lower-case letters, digits and _"),
        REPORT,
    ))
}

/// Versions are shown, compared and told to others, which takes them to be versions.
fn check_version(path: &Path, version: &str) -> Result<(), Verdict> {
    if version.len() <= 64 && Version::parse(version).is_ok() {
        return Ok(());
    }
    let version: String = version.chars().take(64).collect();
    Err(refuse(
        VerdictState::Incompatible,
        path,
        format!("states the version {version:?}; expected one such as 1.2.3"),
        REPORT,
    ))
}

/// Opens the file with every symbol bound now: one that is missing would end the process at its first call. Gives the
/// function of the C door, where the module has that and no root module.
#[cfg(unix)]
fn bind(path: &Path) -> Result<Option<c::Plugin>, Verdict> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the module's initialisers run; that is the trust which the manifest's owner gave by naming the file, whose
    // permissions, hash and headers were checked.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| dlopen_verdict(path, &error_text(&error)))?;
    // SAFETY: the symbol is looked up and not used.
    let root = unsafe { library.get::<*const ()>(ROOT_SYMBOL.as_bytes()) }.is_ok();
    // SAFETY: a function of that name has the type that the header gives it.
    let door = unsafe { library.get::<c::Plugin>(c::SYMBOL.as_bytes()) }.ok();
    let door = door.map(|symbol| *symbol).filter(|_| !root);
    // Modules are never unloaded: their threads and thread-local values may outlive any use of theirs.
    std::mem::forget(library);
    if root || door.is_some() {
        return Ok(door);
    }
    Err(refuse(
        VerdictState::Incompatible,
        path,
        "not a Backplane plugin: it exports no root module",
        NOT_A_PLUGIN,
    ))
}

#[cfg(not(unix))]
fn bind(_path: &Path) -> Result<Option<c::Plugin>, Verdict> {
    // Other systems bind every symbol when a library is opened; the C door is looked for on Unix only.
    Ok(None)
}

/// An error with its sources: the system's words are in the last.
fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text += &format!(": {source}");
        next = source.source();
    }
    text
}

/// What the system's loader says (glibc, musl, macOS), as a verdict.
fn dlopen_verdict(path: &Path, text: &str) -> Verdict {
    if let Some(name) = missing_library(text) {
        return refuse(
            VerdictState::MissingLibrary,
            path,
            format!("needs the library {name}, which can't be found"),
            &format!("install {name} or add its folder to the library search path"),
        );
    }
    if let Some(symbol) = missing_symbol(text) {
        return refuse(
            VerdictState::Incompatible,
            path,
            format!("needs the symbol {symbol}, which no library has"),
            "install the version of the library that the module was built with",
        );
    }
    refuse(
        VerdictState::Incompatible,
        path,
        format!("the system can't load it: {text}"),
        "install the module again",
    )
}

/// The library that is missing, from the loader's words.
fn missing_library(text: &str) -> Option<&str> {
    // glibc: `libx.so.6: cannot open shared object file: No such file or directory`.
    if let Some((before, _)) = text.split_once(": cannot open shared object file") {
        return before.rsplit([' ', ':']).next();
    }
    // musl: `Error loading shared library libx.so: No such file or directory (needed by …)`.
    if let Some((_, after)) = text.split_once("Error loading shared library ") {
        return after.split(':').next();
    }
    // macOS: `Library not loaded: @rpath/libx.dylib`.
    text.split_once("Library not loaded: ")
        .and_then(|(_, after)| after.split_whitespace().next())
}

/// The symbol that is missing, from the loader's words.
fn missing_symbol(text: &str) -> Option<&str> {
    // glibc; musl: `Error relocating x.so: f: symbol not found`; macOS: `Symbol not found: _f`.
    text.split_once("undefined symbol: ")
        .or_else(|| text.split_once("Symbol not found: "))
        .and_then(|(_, after)| after.split([' ', ',', '\n']).next())
        .or_else(|| {
            text.split_once(": symbol not found")
                .and_then(|(before, _)| before.rsplit(' ').next())
        })
}

fn compatible_version(path: &Path, header: &LibHeader) -> Result<Version, Verdict> {
    let stated = header.version_strings().version;
    let theirs = Version::parse(stated.as_str()).map_err(|error| {
        refuse(
            VerdictState::Incompatible,
            path,
            format!("contract version `{stated}`: {error}"),
            REBUILD,
        )
    })?;
    let ours = our_version();
    if theirs.major != ours.major {
        return Err(refuse(
            VerdictState::Incompatible,
            path,
            format!("built against contract {theirs}; this host has contract {ours}"),
            if theirs.major > ours.major {
                "update Backplane"
            } else {
                "update the plugin"
            },
        ));
    }
    Ok(theirs)
}

fn our_version() -> Version {
    Version::parse(CONTRACT_VERSION).unwrap_or(Version::new(0, 0, 0))
}

/// Compares layouts with the older side as the interface.
fn compatible_layout(path: &Path, header: &LibHeader, theirs: &Version) -> Result<(), Verdict> {
    let Some(module) = header.layout() else {
        return Err(refuse(
            VerdictState::Incompatible,
            path,
            "its contract states no layout",
            REBUILD,
        ));
    };
    let ours = <PluginModuleRef as StableAbi>::LAYOUT;
    let (older, newer) = if *theirs < our_version() {
        (module, ours)
    } else {
        (ours, module)
    };
    layout::check(older, newer).map_err(|mismatch| {
        tracing::debug!(path = %path.display(), dump = %mismatch.dump, "layouts differ");
        refuse(
            VerdictState::Incompatible,
            path,
            format!(
                "contract {theirs} has another layout than this host's {CONTRACT_VERSION}: {}",
                mismatch.line
            ),
            REBUILD,
        )
    })
}

fn library_verdict(path: &Path, error: &LibraryError) -> Verdict {
    match error {
        LibraryError::OpenError { err, .. } => dlopen_verdict(path, &error_text(&**err)),
        LibraryError::GetSymbolError { .. } => refuse(
            VerdictState::Incompatible,
            path,
            "not a Backplane plugin: it exports no root module",
            NOT_A_PLUGIN,
        ),
        LibraryError::InvalidAbiHeader(header) => refuse(
            VerdictState::Incompatible,
            path,
            format!(
                "built with abi_stable {}.{}, this host with {}.{}",
                header.abi_major,
                header.abi_minor,
                AbiHeader::VALUE.abi_major,
                AbiHeader::VALUE.abi_minor,
            ),
            REBUILD,
        ),
        LibraryError::RootModule {
            err: RootModuleError::Unwound,
            ..
        } => refuse(
            VerdictState::Crashed,
            path,
            "panicked while it was initialised",
            "report this to the plugin's author",
        ),
        other => refuse(VerdictState::Incompatible, path, other, REBUILD),
    }
}

/// Why there is no backend, as a verdict.
fn backend_verdict(path: &Path, error: &Error) -> Verdict {
    let state = match error.code {
        ErrorCode::InvalidRequest | ErrorCode::UnsupportedField => VerdictState::Misconfigured,
        ErrorCode::Device | ErrorCode::OutOfMemory => VerdictState::NoDevice,
        ErrorCode::Unsupported => VerdictState::ArchitectureUnsupported,
        _ => VerdictState::Crashed,
    };
    refuse(state, path, &error.message, &error.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(check_name(Path::new("x"), "llama_cpp2").is_ok());
        for name in ["", "CPU", "a b", "é", "a\nb", &"a".repeat(65)] {
            let verdict = check_name(Path::new("x"), name).unwrap_err();
            assert!(!verdict.message.contains('\n'), "{verdict}");
        }
    }

    #[test]
    fn the_system_loaders_words_are_understood() {
        let state = |text| dlopen_verdict(Path::new("/p/x.so"), text);
        for text in [
            "libamd.so.6: cannot open shared object file: No such file or directory",
            "dlopen failed: libamd.so.6: cannot open shared object file: No such file or directory",
            "Error loading shared library libamd.so.6: No such file or directory (needed by /p/x.so)",
            "dlopen(/p/x.so, 0x0006): Library not loaded: libamd.so.6\n  Referenced from: /p/x.so",
        ] {
            assert_eq!(state(text).state, VerdictState::MissingLibrary, "{text}");
            assert!(
                state(text).message.contains("library libamd.so.6,"),
                "{}",
                state(text)
            );
        }
        for text in [
            "/p/x.so: undefined symbol: gone",
            "Error relocating /p/x.so: gone: symbol not found",
            "dlopen(/p/x.so, 0x0006): Symbol not found: gone\n  Referenced from: /p/x.so",
        ] {
            assert_eq!(state(text).state, VerdictState::Incompatible, "{text}");
            assert!(
                state(text).message.contains("symbol gone,"),
                "{}",
                state(text)
            );
        }
    }
}
