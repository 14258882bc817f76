//! Model files, mapped and checked.
