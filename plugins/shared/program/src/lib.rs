//! The step program, its passes and its reference interpreter.
