"""Proa: a serving engine for large language models.

Importing the package imports nothing else: the `proa` command must not pay for numpy.
"""

__version__ = "0.1.0"
