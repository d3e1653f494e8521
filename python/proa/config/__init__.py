"""The engine's effective configuration, as the front end resolved it."""
