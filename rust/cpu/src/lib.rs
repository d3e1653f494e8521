//! Builds `csrc/cpu` into `_cpu.so`, the CPU kernels and the program runner, which Python loads with ctypes.
//!
//! The crate has no Rust interface: its build script is its content. Depending on it (as `pyext` does) makes the shared
//! library stand in the Python package before a wheel is put together.
