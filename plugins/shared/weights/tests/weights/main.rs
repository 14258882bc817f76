//! Tests of model files: references, hostile input, properties, splits.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not count as tests"
)]

mod assembly;
mod blocks;
mod files;
mod fixtures;
mod hostile;
mod metadata;
mod properties;
mod quantize;
mod real;
mod safetensors;
mod shards;
mod support;
mod vocabulary;
mod writer;
