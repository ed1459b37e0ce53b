"""``kronlearn show``: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kronlearn.cli import options as opt
from kronlearn.cli.checks import check_places
from kronlearn.cli.output import Output, facts_of, facts_table, save_figure
from kronlearn.cli.record import history_in, usage_in
from kronlearn.core.dictionary import Dictionary
from kronlearn.io.model_files import load_dictionary, read_file

__all__ = ["show"]


def show(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the atoms to this file.")
    ] = None,
    convergence: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a plot of the error over the iterations to this file."
        ),
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Describe and draw the dictionary in a model file."""
    shown = Output(as_json, quiet)
    drawings = [("--picture", picture), ("--convergence", convergence)]
    check_places(drawings, [model], overwrite)
    dictionary = load_dictionary(model)
    _, info = read_file(model, "dictionary")
    history = history_in(info)
    if convergence is not None and history is None:
        raise ValueError(
            f"{model} has no history of its learning; files written by kronlearn learn do."
        )
    facts = dictionary_facts(dictionary)
    shown.say(model)
    told = {n: v for n, v in info.items() if n not in ("history", "usage")}
    # Sizes that a file tells of stand before the rest, and are those of its dictionary.
    shown.say(facts_table([*facts_of({**facts, **told, **facts}), *usage_in(info)]))
    if picture is not None:
        from kronlearn.plots import DictionaryDisplay

        save_figure(DictionaryDisplay(dictionary).plot().figure_, picture, overwrite)
    if convergence is not None and history is not None:
        from kronlearn.plots.convergence import convergence_figure

        save_figure(convergence_figure({None: history}), convergence, overwrite)
    for _, path in drawings:
        if path is not None:
            shown.say(f"Wrote {path}")
    shown.finish({"model": str(model), **facts, "info": info})


def dictionary_facts(dictionary: Dictionary) -> dict[str, Any]:
    """Sizes and coherence: the largest inner product of two columns of each factor.

    For a sum of Kronecker products it is that of two atoms.
    """
    coherence = []
    for factor in dictionary.coding_factors:
        columns = factor.astype(np.float64)
        gram = np.abs(columns.T @ columns)
        np.fill_diagonal(gram, 0)
        coherence.append(float(gram.max()))
    return {
        "patch_shape": dictionary.patch_shape,
        "n_atoms": dictionary.n_atoms,
        "n_terms": dictionary.n_terms,
        "n_features": dictionary.n_features,
        "n_codes": dictionary.n_codes,
        "redundancy": dictionary.n_codes / dictionary.n_features,
        "dtype": dictionary.dtype.name,
        "is_orthonormal": dictionary.is_orthonormal,
        "coherence": coherence,
    }
