"""Ops: what a model's forward pass is written in, and the device code behind each."""
