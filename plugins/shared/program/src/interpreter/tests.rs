//! Tests of the operations.
