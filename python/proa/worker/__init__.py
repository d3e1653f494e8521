"""Workers: everything that owns device memory and runs a step on it."""
