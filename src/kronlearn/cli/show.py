"""``kronlearn show``: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kronlearn.cli import drawing
from kronlearn.cli import options as opt
from kronlearn.cli.output import Output, facts_table, readable, times
from kronlearn.cli.places import check_places
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
    output = Output(as_json, quiet)
    drawings = [("--picture", picture), ("--convergence", convergence)]
    check_places(drawings, [model], overwrite)
    for option, path in drawings:
        drawing.check_drawable(option, path)
    dictionary = load_dictionary(model)
    _, info = read_file(model, "dictionary")
    history = history_in(info)
    if convergence is not None and history is None:
        raise ValueError(
            f"{model} does not say how it was learned; files that kronlearn learn writes do."
        )
    facts = dictionary_facts(dictionary)
    output.say(model)
    output.say(facts_table([*_sizes(facts), *usage_in(info), *_told(info)]))
    if picture is not None:
        drawing.save_dictionary_picture(dictionary, picture, overwrite)
    if convergence is not None and history is not None:
        drawing.save_convergence({None: history}, convergence, overwrite)
    for _, path in drawings:
        if path is not None:
            output.say(f"Wrote {path}")
    output.finish({"model": str(model), **facts, "info": info})


def _sizes(facts: dict[str, Any]) -> list[tuple[str, str | None]]:
    is_sum = facts["n_terms"] > 1
    coherence = ", ".join(f"{c:.3f}" for c in facts["coherence"])
    return [
        ("patch shape", times(facts["patch_shape"])),
        ("atoms", f"{times(facts['n_atoms'])} = {facts['n_codes']}"),
        ("sum of", f"{facts['n_terms']} Kronecker products" if is_sum else None),
        ("redundancy", f"{facts['redundancy']:.3g}"),
        ("dtype", facts["dtype"]),
        ("orthonormal", "yes" if facts["is_orthonormal"] else "no"),
        (f"coherence of {'atoms' if is_sum else 'factors'}", coherence),
    ]


def _told(info: dict[str, Any]) -> list[tuple[str, str | None]]:
    """What a file's info says, less what is told in a better way."""
    return [
        (str(readable(name)).replace("_", " "), readable(value))
        for name, value in info.items()
        if not (name in ("history", "usage") and isinstance(value, dict))
    ]


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
