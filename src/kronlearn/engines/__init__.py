"""Engines run passes over samples: in threads of this process, or on Dask workers."""
