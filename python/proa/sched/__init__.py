"""Scheduling policy: which tokens run in the next step. Imports no torch."""
