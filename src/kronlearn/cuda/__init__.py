"""Coding and learning on a GPU, through CuPy (the extra ``cuda13`` or ``cuda12``).

``engine.py`` runs passes over samples (``samples.py``, ``coder.py``, ``block_sums.py``) and whole
iterations (``iterations.py``, ``updates.py``); ``images.py`` and ``groups.py`` process images.
``specialised.py`` chooses the kernels, ``structs.py`` declares what they are passed, and
``device.py`` compiles and launches them.
"""

from kronlearn.cuda.memory import memory_limit

__all__ = ["memory_limit"]
