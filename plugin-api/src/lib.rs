//! The contract between the Backplane host and its plugins, and the plugin author's SDK.
