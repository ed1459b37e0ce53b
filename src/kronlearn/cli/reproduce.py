"""``kronlearn reproduce``: the paper's experiments, with its numbers beside kronlearn's."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kronlearn.cli.bench import experiment_command, print_report
from kronlearn.cli.groups import Group, command_of
from kronlearn.cli.output import Output
from kronlearn.experiments.report import join
from kronlearn.options import Json, Quiet

__all__ = ["reproduce"]

# The functions of the experiments, by module.
_MODULES = {
    **dict.fromkeys(("table1", "figure1", "figure2"), "comparison"),
    **dict.fromkeys(("table2", "table4"), "speedup"),
    "table3": "table3",
}

_OF_COMPARISONS = """

The folder of --images must contain lena.png, peppers.png and boat.png. Writes {}.md, and
comparison.csv, which table1, figure1 and figure2 share. Results that are already in comparison.csv
are not computed again."""

_OF_SPEEDUPS = """Writes {0}.csv, and {0}.md, which also has the paper's numbers. Results for this
machine that are already in {0}.csv are not measured again."""


def results(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder with the reports.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Join the reports in a folder into one page, RESULTS.md.

    Uses the reports of table1, figure1, figure2, table2, table3 and table4 that are there.
    """
    print_report(join(folder), Output(as_json, quiet))


_HELPS = {
    "table1": "Compare times and errors of separable and other methods: Table I."
    + _OF_COMPARISONS.format("table1"),
    "figure1": "Plot the RMSE of held-out samples over the iterations: Figure 1."
    + _OF_COMPARISONS.format("figure1"),
    "figure2": "Compare the RMSE of held-out samples for 8, 16 and 24 atoms per mode: Figure 2."
    + _OF_COMPARISONS.format("figure2"),
    "table2": "Measure how learning from patches of three sizes scales with threads: Table II."
    "\n\n" + _OF_SPEEDUPS.format("table2"),
    "table3": "Denoise five images at five noise levels: Table III.\n\n"
    "Runs with the paper's settings and with the defaults. Writes table3.csv, and table3.md, "
    "which also has the paper's numbers. Results that are already in table3.csv are not "
    "computed again.",
    "table4": "Measure how learning from millions of patches of a cube scales with threads: "
    "Table IV.\n\nBuilds a cube of the paper's size (1 GB in memory) from a small one. "
    + _OF_SPEEDUPS.format("table4"),
    "results": results.__doc__ or "",
}


def _experiment(name: str) -> Any:
    if name == "results":
        return command_of(name, results)
    module = import_module(f"kronlearn.experiments.{_MODULES[name]}")
    return command_of(name, experiment_command(getattr(module, name)), _HELPS[name])


reproduce = Group(_HELPS, _experiment, name="reproduce", help="Reproduce the paper's experiments.")
