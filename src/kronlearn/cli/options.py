"""Options that several commands share, and the texts that some of them are read from."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated

import typer

__all__ = [
    "Device",
    "DeviceName",
    "Jobs",
    "Json",
    "Method",
    "MethodName",
    "Overwrite",
    "Quick",
    "Quiet",
    "Structure",
    "StructureName",
    "parse_case",
    "parse_numbers",
    "parse_sizes",
]


class Structure(StrEnum):
    """Kinds of factors."""

    general = "general"
    orthonormal = "orthonormal"


class Method(StrEnum):
    """Coders for general factors."""

    ols = "ols"
    omp = "omp"
    exchange = "exchange"


class Device(StrEnum):
    """Where samples are coded and summed."""

    cpu = "cpu"
    cuda = "cuda"


StructureName = Annotated[
    Structure, typer.Option(metavar="NAME", help="Factors: general or orthonormal.")
]
MethodName = Annotated[
    Method,
    typer.Option(
        metavar="NAME", help="Coding for general factors: ols, omp (faster) or exchange (closer)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--n-jobs", "-j", metavar="N", help="Threads; -1 for all cores.", show_default="1"
    ),
]
DeviceName = Annotated[Device, typer.Option(metavar="NAME", help="cpu, or cuda for an NVIDIA GPU.")]
Quick = Annotated[bool, typer.Option("--quick", help="Little data, few repetitions.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", "-f", help="Replace files that exist already.")
]


def parse_sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """``8x8`` as (8, 8)."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,5}([x×,][1-9]\d{0,5})*", text):
        raise ValueError(f"{option} {text} is not a size; write one number per mode, as in 8x8.")
    return tuple(int(size) for size in re.split("[x×,]", text))


def parse_case(text: str) -> tuple[int, int, int]:
    """``8,16,6`` as (8, 16, 6)."""
    sizes = parse_sizes("--case", text) or ()
    if len(sizes) != 3:
        raise ValueError(f"--case {text} needs three numbers, m,n,s as in 8,16,6.")
    return sizes[0], sizes[1], sizes[2]


def parse_numbers(option: str, texts: list[str] | None) -> tuple[float, ...] | None:
    """``10,12`` or several such texts as numbers, none below 0."""
    if not texts:
        return None
    numbers = []
    for text in ",".join(texts).split(","):
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"{option} {text} is not a number of at least 0.")
        numbers.append(number)
    return tuple(numbers)
