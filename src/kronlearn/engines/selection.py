"""Which engine does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kronlearn.engines.engine import Engine
from kronlearn.engines.threads import Threads, resolve_n_jobs
from kronlearn.sources.source import Source
from kronlearn.sources.stored_samples import dask_array

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ENGINES", "select_engine"]

ENGINES = ("auto", "threads", "dask")


def select_engine(name: str, source: Source, block_size: int, n_jobs: int | None) -> Engine:
    """The engine of that name for a source; "auto" chooses Dask for Dask arrays with a client."""
    client = None
    if name == "dask" or (name == "auto" and dask_array(source) is not None):
        client = _active_client(needed=name == "dask")
    if client is None:
        return Threads(resolve_n_jobs(n_jobs), block_size)
    from kronlearn.engines.cluster import Cluster

    return Cluster(client, source, block_size, None if n_jobs is None else resolve_n_jobs(n_jobs))


def _active_client(needed: bool) -> Client | None:
    try:
        from distributed import get_client
    except ImportError:
        if not needed:
            return None
        raise ImportError(
            'engine="dask" needs the package distributed, which is not installed: '
            "pip install 'kronlearn[dask]'."
        ) from None
    try:
        return get_client()
    except ValueError:
        if not needed:
            return None
        raise ValueError(
            'engine="dask" needs an active client; create one first, for example '
            "client = dask.distributed.Client()."
        ) from None
