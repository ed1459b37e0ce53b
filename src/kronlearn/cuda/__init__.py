"""Coding and learning on a GPU, through CuPy (the extra ``cuda13`` or ``cuda12``)."""

from kronlearn.cuda.memory import memory_limit

__all__ = ["memory_limit"]
