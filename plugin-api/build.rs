//! Tells the crate which compiler builds it, so that a module can say so.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown rustc".to_owned(), |text| text.trim().to_owned());
    println!("cargo::rustc-env=BACKPLANE_RUSTC_VERSION={version}");
    println!("cargo::rerun-if-changed=build.rs");
}
