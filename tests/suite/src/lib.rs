//! End to end, conformance, parity, hostile input, and the laws of the house.
