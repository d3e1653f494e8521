"""The CPU library `_cpu.so`: its C ABI in ctypes. Imports numpy, never torch."""
