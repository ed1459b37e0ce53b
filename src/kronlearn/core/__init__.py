"""Dictionaries, coders, moments, updates and the learning loop: NumPy, SciPy and native code only."""
