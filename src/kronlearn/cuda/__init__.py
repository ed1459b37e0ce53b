"""Coding and learning on a graphics card, through CuPy (the extra ``cuda``)."""
