//! Directories as hubs have them, assembled: against the GGUF files of the same models, and against what is wrong with them.

mod equals_gguf;
mod hostile;
mod layouts;
mod refusals;
mod rotation;
mod support;
