"""Readers of weights: numpy views of mapped files, expanded where they are quantised. No torch."""
