"""Coded images on the workers of a Dask cluster, where a task works on one image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from distributed import CancelledError, Client

from kronlearn.convolutional.coded import FAN_IN, CodedImage, CodedImages, add_up
from kronlearn.convolutional.padded import Codes
from kronlearn.core.instruction_sets import instruction_set, use_instruction_set
from kronlearn.engines.dask import check_versions

__all__ = ["DaskImages"]


class DaskImages(CodedImages):
    """Coded images held by workers. Sums have the same bits as those of :class:`CodedImages`.

    Parameters
    ----------
    futures : sequence of Future
        A ``CodedImage`` each.
    client : distributed.Client
    """

    def __init__(self, futures: Sequence[Any], client: Client) -> None:
        self.futures, self.client = futures, client

    @classmethod
    def scattered(cls, images: CodedImages, client: Client) -> DaskImages:
        """Send images to the workers of a cluster."""
        check_versions(client)
        return cls(client.scatter(list(images.images), hash=False), client)

    def mapped(self, function: Callable[..., CodedImage], *arguments: Any) -> DaskImages:
        """The results of a task for each image, without waiting for them."""
        return DaskImages(self._tasks(function, arguments), self.client)

    def total(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The sum of the results of a task for each image; tasks add them, too."""
        terms = self._tasks(function, arguments)
        while len(terms) > FAN_IN:
            groups = [terms[i : i + FAN_IN] for i in range(0, len(terms), FAN_IN)]
            terms = self.client.map(add_up, groups, key="kronlearn-add", pure=False)
        return add_up(self._gathered(terms))

    def codes(self) -> list[Codes]:
        """Fetch the codes of every image."""
        return self._gathered(self._tasks(attrgetter("codes"), ()))

    def _tasks(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        futures: list[Any] = self.client.map(
            _call,
            self.futures,
            key="kronlearn-convolutional",
            pure=False,
            function=function,
            arguments=arguments,
            instructions=instruction_set(),
        )
        return futures

    def _gathered(self, futures: Sequence[Any]) -> list[Any]:
        try:
            return list(self.client.gather(futures))
        except CancelledError:
            raise RuntimeError(
                "A Dask worker was lost together with the images it held. Call fit again; with "
                "checkpoint=, it resumes from the last save."
            ) from None


def _call(
    image: CodedImage, function: Callable[..., Any], arguments: tuple[Any, ...], instructions: str
) -> Any:
    """Call a function of an image with the instruction set of the client's process."""
    with use_instruction_set(instructions):
        return function(image, *arguments)
