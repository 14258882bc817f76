//! Conformance suite for Backplane plugins.
