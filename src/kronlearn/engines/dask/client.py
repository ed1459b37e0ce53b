"""What the engine asks of a Dask client: tasks, the release of their results, equal versions."""

from __future__ import annotations

from typing import Any

from distributed import Client, Future

import kronlearn

__all__ = ["check_versions", "map_near", "map_tasks", "release"]


def map_tasks(
    client: Client, name: str, function: Any, *arguments: list[Any], **common: Any
) -> list[Future]:
    """Submit one task per set of arguments, under a name that the dashboard shows."""
    futures: list[Future] = client.map(function, *arguments, key=name, pure=False, **common)
    return futures


def map_near(
    client: Client,
    name: str,
    function: Any,
    workers: list[str | None],
    *arguments: list[Any],
    **common: Any,
) -> list[Future]:
    """Submit one task per set of arguments, each for the worker with that address, if any.

    Idle workers do not steal such a task while its worker lives: fetching the samples would take
    longer than waiting for the worker.
    """
    futures: dict[int, Future] = {}
    for worker in dict.fromkeys(workers):
        numbers = [k for k, address in enumerate(workers) if address == worker]
        selected = [[argument[k] for k in numbers] for argument in arguments]
        where = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        submitted = map_tasks(client, name, function, *selected, **where, **common)
        futures |= zip(numbers, submitted, strict=True)
    return [futures[k] for k in range(len(workers))]


def release(futures: list[Future]) -> None:
    """Let Dask forget results, and cancel tasks that have not begun."""
    for future in futures:
        future.release()


def check_versions(client: Client) -> None:
    """Raise unless all workers can import this version of kronlearn.

    A worker that cannot would fail to unpickle its tasks and end, and so would its replacements.
    """
    version = kronlearn.__version__
    answers = client.run(eval, "__import__('kronlearn').__version__", on_error="return")
    for worker, answer in answers.items():
        # OSError: this worker has just been lost.
        if answer != version and not isinstance(answer, OSError):
            raise RuntimeError(
                f"The Dask worker {worker} does not have kronlearn {version}, but this: {answer}. "
                "Install the same version for all workers and the scheduler."
            )
