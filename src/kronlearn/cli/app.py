"""What the command line accepts; each command's own module does the work.

Those modules are imported when their command runs, so that ``kronlearn --help`` stays quick.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

__all__ = ["app", "main"]

# Wrong input, as opposed to a failure of the program or of the machine.
_BAD_INPUT = (ValueError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Commands(TyperGroup):
    """The commands, with every error as one line and an exit code.

    2: wrong usage or input; 1: anything else that failed; 130: interrupted.
    """

    show_traceback = False

    def main(
        self,
        args: Sequence[str] | None = None,
        *rest: Any,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; ends the process unless ``standalone_mode`` is off."""
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(args, *rest, **extra)
        try:
            result = super().main(args, *rest, **extra)
            code = result if isinstance(result, int) else 0
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as problem:
            if self.show_traceback:
                traceback.print_exc()
            code = _report(problem)
        if code == 130:
            print("Interrupted.", file=sys.stderr)
        sys.exit(code)


def _report(problem: Exception) -> int:
    """Print what went wrong on one line; the exit code."""
    code = 2 if isinstance(problem, _BAD_INPUT) else 1
    text = str(problem)
    if isinstance(problem, UnicodeError) or not isinstance(problem, (*_BAD_INPUT, OSError)):
        text = f"{type(problem).__name__}: {text} (kronlearn --traceback … shows where)"
    # The parser's own exceptions, wherever this version of typer keeps them.
    if hasattr(problem, "format_message") and hasattr(problem, "exit_code"):
        code, text = int(problem.exit_code), str(problem.format_message())
    if text:
        print("Error:", " ".join(text.split()), file=sys.stderr)
    return code


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)
bench = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line (the ``kronlearn`` entry point)."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        import kronlearn

        print(f"kronlearn {kronlearn.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def kronlearn(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the program an error came up.")
    ] = False,
) -> None:
    """Learn separable (Kronecker) dictionaries and sparse-code with them."""
    if isinstance(context.command, Commands):
        context.command.show_traceback = show_traceback
    if context.invoked_subcommand is None:
        print(context.get_help())


class Structure(StrEnum):
    """Kinds of factors."""

    general = "general"
    orthonormal = "orthonormal"


class Method(StrEnum):
    """Coders for general factors."""

    ols = "ols"
    omp = "omp"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Jobs = Annotated[
    int | None, typer.Option("--n-jobs", "-j", metavar="N", help="Threads; -1 for all cores.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Little data, few repetitions.")]


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to write.")
    ] = Path("kronlearn-demo"),
    quick: Quick = False,
    n_jobs: Jobs = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For the starting factors.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from an image that comes with scikit-image, in seconds.

    Prints how well learned and fixed dictionaries do, and writes dictionary.png,
    convergence.png and dictionary.safetensors.
    """
    from kronlearn.cli.demo import run
    from kronlearn.cli.output import Output

    run(output, quick, n_jobs, seed, Output(as_json, quiet))


Inputs = Annotated[
    list[Path], typer.Argument(help="One .npy array of patches, or one or more images.")
]
Model = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="The model file to write.")
]
Patch = Annotated[
    str | None,
    typer.Option(
        metavar="8x8", help="Shape of a patch.", show_default="8x8 for images, the array's own"
    ),
]
Atoms = Annotated[
    str | None,
    typer.Option(
        metavar="16x16",
        help="Atoms per mode.",
        show_default="twice the patch; as the patch if orthonormal",
    ),
]
Sparsity = Annotated[
    int | None,
    typer.Option(
        "--sparsity",
        "-s",
        metavar="N",
        help="Atoms per patch at most.",
        show_default="6; no limit with --tol",
    ),
]
Tol = Annotated[float | None, typer.Option(metavar="NORM", help="Residual that a patch may have.")]
Stride = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Pixels from one patch of an image to the next.",
        show_default="no overlap",
    ),
]
RemoveMeans = Annotated[
    bool | None,
    typer.Option(
        "--remove-means/--keep-means",
        help="Whether each patch loses its mean.",
        show_default="removed for images, kept for arrays",
    ),
]
StructureName = Annotated[
    Structure, typer.Option(metavar="NAME", help="Factors: general or orthonormal.")
]
MethodName = Annotated[
    Method, typer.Option(metavar="NAME", help="Coding for general factors: ols or omp.")
]
MaxIter = Annotated[int, typer.Option(metavar="N", help="Iterations at most.")]
TimeBudget = Annotated[float | None, typer.Option(metavar="SECONDS", help="Stop after this long.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep the state here; resume from it if it exists."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Makes the result repeatable.")]


@app.command()
def learn(
    inputs: Inputs,
    output: Model = Path("model.safetensors"),
    patch: Patch = None,
    atoms: Atoms = None,
    sparsity: Sparsity = None,
    tol: Tol = None,
    stride: Stride = None,
    remove_means: RemoveMeans = None,
    structure: StructureName = Structure.general,
    method: MethodName = Method.ols,
    max_iter: MaxIter = 100,
    time_budget: TimeBudget = None,
    checkpoint: Checkpoint = None,
    n_jobs: Jobs = None,
    seed: Seed = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn a dictionary from patches and save it.

    An interrupt (Ctrl-C) ends learning; the model of the last finished iteration is saved.
    """
    from kronlearn.cli.learn import Request, run
    from kronlearn.cli.output import Output

    request = Request(
        inputs=inputs,
        output=output,
        patch=_sizes("--patch", patch),
        atoms=_sizes("--atoms", atoms),
        sparsity=sparsity,
        tol=tol,
        stride=stride,
        remove_means=remove_means,
        structure=structure.value,
        method=method.value,
        max_iter=max_iter,
        n_jobs=n_jobs,
        seed=seed,
        time_budget=time_budget,
        checkpoint=checkpoint,
    )
    if not run(request, Output(as_json, quiet)):
        raise typer.Exit(130)


@app.command()
def show(
    model: Annotated[Path, typer.Argument(help="A model file.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the atoms into this image file.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what is in a model file, and draw it."""
    from kronlearn.cli.output import Output
    from kronlearn.cli.show import run

    run(model, picture, Output(as_json, quiet))


@bench.command("coding")
def bench_coding(
    images: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="PNG images to take patches from.",
            show_default="images of scikit-image",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="m,n,s", help="m × m patches, n × n atoms, s nonzeros; repeatable."),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, metavar="N", help="Compare one thread with this many, too.")
    ] = 1,
    repetitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="The median of these counts.")
    ] = 5,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows here.")] = None,
    quick: Quick = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare sparse coding with SPAMS and scikit-learn, if they are installed."""
    from kronlearn.cli.bench_coding import CASES, run
    from kronlearn.cli.output import Output

    cases = [_case(text) for text in case] if case else list(CASES[:2] if quick else CASES)
    run(cases, images, threads, repetitions, quick, csv, Output(as_json, quiet))


@bench.command("learning")
def bench_learning(quick: Quick = False, as_json: Json = False, quiet: Quiet = False) -> None:
    """Measure an iteration of learning against coding, threads, types, shapes and memory."""
    from kronlearn.cli.bench_learning import run
    from kronlearn.cli.output import Output

    run(quick, Output(as_json, quiet))


def _sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """``8x8`` as (8, 8)."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,5}([x×,][1-9]\d{0,5})*", text):
        raise ValueError(f"{option} {text} is not a size; write one number per mode, as in 8x8.")
    return tuple(int(size) for size in re.split("[x×,]", text))


def _case(text: str) -> tuple[int, int, int]:
    sizes = _sizes("--case", text) or ()
    if len(sizes) != 3:
        raise ValueError(f"--case {text} needs three numbers, m,n,s as in 8,16,6.")
    return sizes[0], sizes[1], sizes[2]
