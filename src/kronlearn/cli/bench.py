"""``kronlearn bench``: the benchmarks of kronlearn.experiments, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any

import rich.table

from kronlearn.cli.checks import use_device
from kronlearn.cli.groups import Group, command_of
from kronlearn.cli.output import Output
from kronlearn.experiments.report import Report, Table
from kronlearn.options import Json, Quiet

__all__ = ["bench", "experiment_command", "print_report"]


def experiment_command(run: Callable[..., Report]) -> Callable[..., None]:
    """The function of a command that runs an experiment and prints its report.

    Its options are the parameters of ``run``, with --json and --quiet in place of ``progress``.
    """

    def command(as_json: bool, quiet: bool, **options: Any) -> None:
        shown = Output(as_json, quiet)
        if run.__module__ == "kronlearn.experiments.gpu":
            use_device("cuda", shown, "bench gpu", "bench learning needs none")
        if options.get("quick"):
            shown.say("Quick run: too little data to draw conclusions from.")
        print_report(run(**options, progress=shown.progress), shown)

    own = dict(signature(run, eval_str=True).parameters)
    del own["progress"]
    added = {
        name: Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in {"as_json": Json, "quiet": Quiet}.items()
    }
    command.__signature__ = Signature([*own.values(), *added.values()])  # type: ignore[attr-defined]
    return command


def print_report(report: Report, shown: Output) -> None:
    """Print a report as text or as JSON."""
    for part in report.shown:
        shown.say(part if isinstance(part, str) else _table(part))
    shown.finish(report.record)


def _table(table: Table) -> rich.table.Table:
    """A table for a terminal, with numbers aligned to the right."""
    shown = rich.table.Table(title=table.title, title_justify="left")
    for column, heading in enumerate(table.headings):
        is_text = any(row[column][:1].isalpha() for row in table.rows)
        shown.add_column(heading, justify="left" if is_text else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


# Each is the function ``run`` of the module of its name.
_HELPS = {
    "coding": "Compare sparse coding with SPAMS and scikit-learn, if they are installed.",
    "learning": "Measure the time and memory that learning takes.",
    "convolutional": "Compare convolutional coding and learning with SPORCO, if it is installed.",
    "gpu": "Compare learning on a GPU with the CPU, and coding on it with batched-omp.",
    "images": "Compare denoising and inpainting with scikit-image, and with BM3D if it is "
    "installed.\n\nThe folder of --images must contain house.png, barbara.png and lena.png.",
    "cube": "Compare learning with two and with three modes, and denoising with scikit-image.",
    "scaling": "Time passes over samples, with threads alone and with Dask workers.",
}


def _benchmark(name: str) -> Any:
    run = import_module(f"kronlearn.experiments.{name}").run
    return command_of(name, experiment_command(run), _HELPS[name])


bench = Group(_HELPS, _benchmark, name="bench", help="Measure speed on this machine.")
