"""``--device``: whether there is a GPU, and word of the kernels that are compiled for it."""

from __future__ import annotations

import logging

from kronlearn.cli.output import Output
from kronlearn.engines.selection import check_device

__all__ = ["use_device"]

_COMPILING = (
    "Preparing kernels for this GPU: they are compiled at their first use, which takes some "
    "seconds, and kept on disk."
)


def use_device(
    device: str,
    output: Output,
    named: str = "--device cuda",
    otherwise: str = "leave the option out",
) -> None:
    """Raise ValueError unless there is such a device; announce kernels that are compiled for it.

    ``named`` is what in the command asks for a GPU, ``otherwise`` what can be done without one.
    """
    if device == "cuda":
        logger = logging.getLogger("kronlearn.cuda")
        logger.setLevel(logging.INFO)
        logger.handlers = [_Announcement(output)]
    try:
        check_device(device)
    except (ImportError, RuntimeError) as problem:
        text = str(problem).replace('device="cuda"', named)
        raise ValueError(text.replace('pass device="cpu"', otherwise)) from problem


class _Announcement(logging.Handler):
    """Tells of the first kernel that is compiled, on the error stream."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.INFO)
        self.output = output
        self.is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Tell people, once."""
        if not self.is_told:
            self.is_told = True
            self.output.mention(_COMPILING)
