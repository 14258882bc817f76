//! Runs a step program on the CPU.
