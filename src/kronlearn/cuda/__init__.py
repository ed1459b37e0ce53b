"""Coding and learning on a GPU, through CuPy (the extra ``cuda``)."""

from kronlearn.cuda.memory import memory_limit

__all__ = ["memory_limit"]
