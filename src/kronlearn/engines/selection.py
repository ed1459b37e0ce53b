"""Which engine does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kronlearn.core.engine import Engine
from kronlearn.core.source import Source
from kronlearn.cuda.device import card
from kronlearn.cuda.engine import Cuda
from kronlearn.cuda.samples import CardSource
from kronlearn.engines.threads import Threads, resolve_n_jobs
from kronlearn.io.samples import dask_array

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "DEVICES",
    "ENGINES",
    "check_device",
    "check_device_name",
    "engine_of_device",
    "select_engine",
]

ENGINES = ("auto", "threads", "dask")
DEVICES = ("cpu", "cuda")


def check_device_name(device: str) -> None:
    """Raise unless a device can have this name, wherever it may be."""
    if device not in DEVICES:
        raise ValueError(f"device={device!r} does not exist; choose one of {', '.join(DEVICES)}.")


def check_device(device: str) -> None:
    """Raise unless there is such a device here."""
    check_device_name(device)
    if device == "cuda":
        card()


def engine_of_device(
    device: str, source: Source, block_size: int, n_jobs: int | None
) -> Threads | Cuda:
    """The engine of this process: threads, or a graphics card."""
    if device == "cuda":
        return Cuda(card(), source, block_size)
    if isinstance(source, CardSource):
        raise ValueError('Y is on a graphics card; pass device="cuda", or a copy of it in memory.')
    return Threads(resolve_n_jobs(n_jobs), block_size)


def select_engine(
    name: str, source: Source, block_size: int, n_jobs: int | None, device: str = "cpu"
) -> Engine:
    """The engine of that name for a source; "auto" chooses Dask for Dask arrays with a client."""
    client = None
    if name == "dask" or (name == "auto" and dask_array(source) is not None):
        client = _active_client(needed=name == "dask")
    if client is None:
        return engine_of_device(device, source, block_size, n_jobs)
    if isinstance(source, CardSource):
        raise ValueError(
            'Y is on a graphics card of this process, and engine="dask" works in others; pass '
            'engine="auto", or a copy of Y in memory.'
        )
    from kronlearn.engines.cluster import Cluster

    n_threads = None if n_jobs is None else resolve_n_jobs(n_jobs)
    return Cluster(client, source, block_size, n_threads, device)


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
