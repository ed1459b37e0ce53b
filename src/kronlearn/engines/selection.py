"""Selection of the engine that runs the passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kronlearn.core.engine import Engine
from kronlearn.core.source import Source
from kronlearn.cuda.arrays import is_on_gpu
from kronlearn.engines.threads import Threads, dask_backend, resolve_n_jobs
from kronlearn.io.arrays import dask_array

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "DEVICES",
    "ENGINES",
    "check_device",
    "check_name",
    "chosen_device",
    "dask_client",
    "local_engine",
    "select_engine",
]

ENGINES = ("auto", "threads", "dask")
DEVICES = ("cpu", "cuda")


def check_name(name: str, value: Any, names: tuple[str, ...]) -> None:
    """Raise unless the value of a parameter is one of the names."""
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{name}={value!r} does not exist; choose one of {', '.join(names)}.")


def check_device(device: str) -> None:
    """Raise unless the device exists on this machine."""
    check_name("device", device, DEVICES)
    if device == "cuda":
        from kronlearn.cuda.device import current_gpu

        current_gpu()


def chosen_device(device: str, data: Any) -> str:
    """The device to work on: that of the user's data if they are on a GPU, else ``device``."""
    check_device(device)
    on_gpu = data.device == "cuda" if isinstance(data, Source) else is_on_gpu(data)
    return "cuda" if on_gpu else device


def local_engine(
    source: Source, n_jobs: int | None, device: str, block_size: int | None = None
) -> Engine:
    """The engine of this process: its threads, or its GPU."""
    if chosen_device(device, source) == "cuda":
        from kronlearn.cuda.engine import Cuda

        return Cuda(source, block_size)
    return Threads(source, resolve_n_jobs(n_jobs), block_size)


def dask_client(name: str, is_lazy: bool = False) -> Client | None:
    """The client of the cluster that an engine uses, or None; ``is_lazy`` means a Dask array."""
    if name == "dask" or (name == "auto" and is_lazy):
        return _active_client(needed=name == "dask")
    return _client_of_joblib() if name == "auto" else None


def select_engine(
    name: str,
    source: Source,
    n_jobs: int | None,
    device: str = "cpu",
    block_size: int | None = None,
) -> Engine:
    """Make the engine of a name, one of :data:`ENGINES`, for a source.

    "auto" means Dask for a Dask array if there is a client, and in a ``joblib`` context with the
    backend Dask.
    """
    client = dask_client(name, dask_array(source) is not None)
    if client is None:
        if name == "threads" and chosen_device(device, source) == "cuda":
            raise ValueError(
                'engine="threads" does not run on a GPU; use engine="auto", or device="cpu" with '
                "samples in host memory."
            )
        return local_engine(source, n_jobs, device, block_size)
    if source.device != "cpu":
        raise ValueError(
            f'{source.name} is on a GPU of this process, and engine="dask" works in other '
            'processes; use engine="auto", or copy it to host memory.'
        )
    from kronlearn.engines.dask import Cluster

    return Cluster(client, source, n_jobs, device, block_size)


def _client_of_joblib() -> Client | None:
    """The client of a ``joblib.parallel_config("dask")`` context; None inside a task."""
    backend = dask_backend()
    if backend is None:
        return None
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return backend.client
    return None


def _active_client(needed: bool) -> Client | None:
    """The active Dask client; without one, None or, if it is needed, an error."""
    try:
        from distributed import get_client
    except ImportError:
        if not needed:
            return None
        raise ImportError(
            'engine="dask" needs the package distributed, which is not installed; run '
            "pip install '.[dask]' in the checkout of kronlearn."
        ) from None
    try:
        client = get_client()
    except ValueError:
        if not needed:
            return None
        raise ValueError(
            'engine="dask" needs an active client; create one first, for example '
            "client = dask.distributed.Client()."
        ) from None
    if client.asynchronous:
        raise ValueError(
            "The active Dask client is asynchronous, but fit waits for its results; create one "
            "with asynchronous=False."
        )
    return client
