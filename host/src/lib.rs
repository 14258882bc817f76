//! Runs language models on whatever accelerators a machine has, through plugins loaded at run time.

pub mod loader;
