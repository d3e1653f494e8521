"""Layers: the parts model families are built from, written against ops."""
