//! Backplane plugin: the CPU.
