//! Tools for those who write plugins: what a module file is ([`file`], [`libraries`]), whether it keeps the contract
//! ([`validate`]), hashes into the manifest ([`pin`]), and a first project ([`template`]).
//!
//! Invariant: nothing here runs a module's code in this process. What can be known only by that is asked of a child
//! ([`trial`](crate::worker)), which may crash or hang: that is an answer.

pub(crate) mod file;
pub(crate) mod libraries;
pub(crate) mod pin;
pub(crate) mod template;
pub(crate) mod validate;
