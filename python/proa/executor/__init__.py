"""Executors: how a plan reaches a device. Each is imported only when chosen."""
