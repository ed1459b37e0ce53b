"""What the engine asks of a Dask client: tasks, the release of their results, equal versions."""

from __future__ import annotations

from typing import Any

from distributed import Client, Future

import kronlearn

__all__ = ["check_versions", "map_tasks", "release"]


def map_tasks(
    client: Client,
    name: str,
    function: Any,
    *arguments: list[Any],
    workers: list[str | None] | None = None,
    **common: Any,
) -> list[Future]:
    """Submit one task per set of arguments, under a name that the dashboard shows.

    If the address of a worker is given for a task, idle workers do not steal it while this worker
    lives: fetching the samples would take longer than waiting for the worker.
    """
    addresses = workers or [None] * len(arguments[0])
    futures: dict[int, Future] = {}
    for address in dict.fromkeys(addresses):
        numbers = [k for k, other in enumerate(addresses) if other == address]
        selected = [[argument[k] for k in numbers] for argument in arguments]
        options: dict[str, Any] = common | {"key": name, "pure": False}
        if address is not None:
            options |= {"workers": [address], "allow_other_workers": True}
        submitted = client.map(function, *selected, **options)
        futures |= zip(numbers, submitted, strict=True)
    return [futures[k] for k in range(len(addresses))]


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
