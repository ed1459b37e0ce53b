"""Options of the command line that several commands share, and the parsers of their values."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def parse_sizes(text: str) -> int | tuple[int, ...]:
    """``8x8`` as (8, 8), and ``8`` as 8, which stands for all modes."""
    if not re.fullmatch(r"[1-9]\d{0,5}([x×,][1-9]\d{0,5})*", text):
        raise typer.BadParameter(f"{text!r} is not a size; give positive numbers, as in 8x8.")
    sizes = tuple(int(size) for size in re.split("[x×,]", text))
    return sizes[0] if len(sizes) == 1 else sizes


def parse_jobs(text: str) -> int:
    """A number of threads; negative numbers count back from the number of cores."""
    if not re.fullmatch(r"-?[1-9]\d{0,8}", text):
        raise typer.BadParameter(
            f"{text!r} is not a number of threads; give 1 or more, or -1 for all cores."
        )
    return int(text)


def parse_folder(text: str) -> Path:
    """A folder, which need not exist."""
    if Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is a file; give the name of a folder.")
    return Path(text)


def parse_counts(text: str) -> list[int]:
    """``1,2,4`` as [1, 2, 4]."""
    if not re.fullmatch(r" *[1-9]\d* *(, *[1-9]\d* *)*", text):
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers, as in 1,2,4.")
    return [int(number) for number in text.split(",")]


def parse_level(text: str) -> float:
    """A noise level."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise typer.BadParameter(f"{text!r} is not a noise level; give a number, 0 or greater.")
    return number


def parse_levels(text: str) -> tuple[float, ...]:
    """``10,12`` as (10.0, 12.0)."""
    return tuple(map(parse_level, text.split(",")))


# Every command

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Jobs = Annotated[
    Any,
    typer.Option(
        "--n-jobs",
        "-j",
        parser=parse_jobs,
        metavar="N",
        help="Number of threads; -1 uses all cores.",
        show_default="1",
    ),
]
Device = Annotated[
    Literal["cpu", "cuda"],
    typer.Option(metavar="NAME", help="Where to compute: cpu, or cuda for an NVIDIA GPU."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Use little data and few repetitions.")]
Folder = Annotated[
    Path,
    typer.Option(
        "--output", "-o", parser=parse_folder, metavar="FOLDER", help="Folder to write to."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", "-f", help="Replace files that already exist.")
]

# bench and reproduce

Repetitions = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of repetitions; the median is reported.")
]
Rows = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows to this CSV file.")]
ImageFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder with the images to use.",
        show_default="images from scikit-image",
    ),
]
CubeFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The cube to use.", show_default="Indian Pines, from tensorly"
    ),
]
Draws = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of random draws of patches or noise.")
]
ThreadCounts = Annotated[
    Any,
    typer.Option(
        "--jobs",
        "-j",
        parser=parse_counts,
        metavar="P,…",
        help="Numbers of threads to measure, as in 1,2,4.",
        show_default="1, 2, 4, … and all cores",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="N",
        help="Number of iterations per fit.",
        show_default="60, or 100 for table4",
    ),
]
OnlyReport = Annotated[
    bool,
    typer.Option("--only-report", help="Only write the report, from the CSV file."),
]

# learn, denoise and inpaint

Patch = Annotated[
    Any,
    typer.Option(
        parser=parse_sizes,
        metavar="8x8",
        help="Shape of a patch; a single number makes it square.",
        show_default="depends on the input",
    ),
]
Atoms = Annotated[
    Any,
    typer.Option(
        parser=parse_sizes,
        metavar="16x16",
        help="Number of atoms per mode.",
        show_default="about twice the patch size; the patch size if orthonormal",
    ),
]

# learn and cube learn

Model = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Model file to write.")]
Sparsity = Annotated[
    int | None,
    typer.Option(
        "--sparsity",
        "-s",
        min=1,
        metavar="N",
        help="Maximum number of atoms per patch.",
        show_default="6; no limit with --tol",
    ),
]
Tol = Annotated[
    float | None,
    typer.Option(
        metavar="NORM",
        help="Target norm of the residual: atoms are added to a patch until it is met.",
    ),
]
Structure = Annotated[
    Literal["general", "orthonormal"],
    typer.Option(metavar="NAME", help="Kind of factors: general or orthonormal."),
]
Method = Annotated[
    Literal["ols", "omp", "exchange"],
    typer.Option(
        metavar="NAME",
        help="Coding method for general factors: ols, omp (faster) or exchange (more accurate).",
    ),
]
MaxIter = Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of iterations.")]
TimeBudget = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Stop after this many seconds.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Save progress in this file; resume from it if it exists."),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Random seed; makes the result repeatable."),
]

# denoise and inpaint

InputImages = Annotated[
    list[Path],
    typer.Argument(
        metavar="IN", help="An image, or several if OUT is a folder; - reads standard input."
    ),
]
# A string, because a Path drops the slash at the end of a folder.
OutputImage = Annotated[
    str,
    typer.Argument(
        metavar="OUT",
        help="The image to write, with the data type of the input, or a folder; - writes a PNG to "
        "standard output.",
    ),
]
Dictionary = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Use the dictionary in this model file.",
        show_default="learned from the image",
    ),
]
Mask = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An image that is nonzero where pixels are missing."),
]
Clean = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Reference image, to report PSNR and SSIM.")
]
Report = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write an HTML page with a before/after slider, pictures and numbers."
    ),
]
Comparison = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write a picture of before, after and difference, side by side."
    ),
]
SaveDictionary = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save the dictionary in this model file.")
]

# Files that contain arrays

BandAxis = Annotated[
    int | None,
    typer.Option(
        metavar="AXIS",
        help="Axis of the bands in the file: 0, 1 or 2.",
        show_default="as the file says, or a guess",
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the array to read, if the file contains several.",
        show_default="the array with the most axes",
    ),
]
NoData = Annotated[
    float | None,
    typer.Option(
        "--nodata",
        metavar="VALUE",
        help="Value that marks missing data; may be nan.",
        show_default="as the file says",
    ),
]
