"""Coding and learning on a graphics card, through CuPy (the extra ``cuda``)."""

from kronlearn.cuda.memory import memory_limit

__all__ = ["memory_limit"]
