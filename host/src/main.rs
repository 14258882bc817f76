//! Backplane.
fn main() {}
