"""The engine process: start, loop, what it says to the front end. Imports no torch."""
