//! Instructions that the hot kernels take, counted by valgrind: see `benches/kernels.rs`.
