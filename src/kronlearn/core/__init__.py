"""Dictionaries, coders, moments, updates and the learning loop, on NumPy and native code alone."""
