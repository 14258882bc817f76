//! Tests of model files: references, hostile input, properties, splits.

mod blocks;
mod files;
mod fixtures;
mod hostile;
mod metadata;
mod properties;
mod real;
mod shards;
mod support;
mod writer;
