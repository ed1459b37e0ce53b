"""Images that the workers of a Dask cluster hold: what is done to an image is a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distributed import CancelledError, Client

from kronlearn.convolutional.canvas import Codes
from kronlearn.convolutional.coded import FAN_IN, Coded, CodedImages, summed
from kronlearn.core.instruction_sets import instruction_set, use_instruction_set
from kronlearn.engines.dask import check_versions

__all__ = ["DaskImages", "held_by_workers"]


def held_by_workers(images: CodedImages, client: Client) -> DaskImages:
    """Images, sent to the workers of a cluster."""
    check_versions(client)
    return DaskImages(client.scatter(list(images.images), hash=False), client)


class DaskImages(CodedImages):
    """Images held by workers. Sums have the bits of :class:`CodedImages`.

    Parameters
    ----------
    futures : sequence of Future
        A ``Coded`` each.
    client : distributed.Client
    """

    def __init__(self, futures: Sequence[Any], client: Client) -> None:
        self.futures, self.client = futures, client

    def mapped(self, function: Callable[..., Coded], *arguments: Any) -> DaskImages:
        """The images after a task for each, which need not have ended yet."""
        return DaskImages(self._tasks(function, arguments), self.client)

    def total(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The sum of what a task for each image finds, added by tasks."""
        terms = self._tasks(function, arguments)
        while len(terms) > FAN_IN:
            groups = [terms[i : i + FAN_IN] for i in range(0, len(terms), FAN_IN)]
            terms = self.client.map(summed, groups, key="kronlearn-add", pure=False)
        return summed(self._gathered(terms))

    def codes(self) -> list[Codes]:
        """The codes of every image, fetched."""
        return self._gathered(self._tasks(_codes, ()))

    def _tasks(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        found: list[Any] = self.client.map(
            _found,
            self.futures,
            key="kronlearn-convolutional",
            pure=False,
            function=function,
            arguments=arguments,
            instructions=instruction_set(),
        )
        return found

    def _gathered(self, futures: Sequence[Any]) -> list[Any]:
        try:
            return list(self.client.gather(futures))
        except CancelledError:
            raise RuntimeError(
                "A Dask worker was lost, and images with it. Fit again; with checkpoint= a fit "
                "resumes from where it was saved."
            ) from None


def _codes(image: Coded) -> Codes:
    return image.codes


def _found(
    image: Coded, function: Callable[..., Any], arguments: tuple[Any, ...], instructions: str
) -> Any:
    """What a function finds in an image, with the instructions of the process that asks."""
    with use_instruction_set(instructions):
        return function(image, *arguments)
