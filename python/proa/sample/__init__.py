"""Sampling on the host's side: the reference recipe in numpy, and the parameters of live rows. No torch."""
