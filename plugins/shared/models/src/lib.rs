//! Architectures: metadata and weights in, program out.
