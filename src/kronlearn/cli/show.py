"""``kronlearn show``: the dictionary or the filters in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import kronlearn as kl
from kronlearn import options as opt
from kronlearn.cli.checks import check_outputs
from kronlearn.cli.output import Output, facts_of, facts_table, save_figure
from kronlearn.cli.record import history_in, usage_in
from kronlearn.core.dictionary import Dictionary
from kronlearn.io.model_files import kind_of, load_dictionary, read_file

__all__ = ["show"]


def show(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file.")],
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a picture of the atoms or filters.")
    ] = None,
    convergence: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a plot of the error over the iterations."),
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Describe and draw the dictionary in a model file."""
    shown = Output(as_json, quiet)
    drawings = [("--picture", picture), ("--convergence", convergence)]
    check_outputs(drawings, [model], overwrite)
    kind = kind_of(model)
    holds_filters = kind == "convolutional dictionary"
    dictionary: Any
    if holds_filters:
        dictionary = kl.convolutional.load_filters(model)
        facts = _filter_facts(dictionary)
    else:
        dictionary = load_dictionary(model)
        facts = _dictionary_facts(dictionary)
    _, info = read_file(model, kind)
    history = history_in(info)
    if convergence is not None and history is None:
        raise ValueError(
            f"{model} has no history of learning; files written by kronlearn learn have one."
        )
    shown.say(model)
    others = {n: v for n, v in info.items() if n not in ("history", "usage")}
    # The facts come first, and replace what the file says about them.
    shown.say(facts_table([*facts_of({**facts, **others, **facts}), *usage_in(info)]))
    if picture is not None:
        display = kl.plots.FiltersDisplay if holds_filters else kl.plots.DictionaryDisplay
        save_figure(display(dictionary).plot().figure_, picture, overwrite)
    if convergence is not None and history is not None:
        from kronlearn.plots.convergence import convergence_figure

        save_figure(convergence_figure({None: history}), convergence, overwrite)
    for _, path in drawings:
        if path is not None:
            shown.say(f"Wrote {path}")
    shown.finish({"model": str(model), **facts, "info": info})


def _filter_facts(dictionary: kl.convolutional.ConvolutionalDictionary) -> dict[str, Any]:
    """The number, shape and structure of filters."""
    return {
        "filters": dictionary.n_filters,
        "filter_shape": dictionary.filter_shape,
        "structure": dictionary.structure,
        "has_channels": dictionary.has_channels,
        "parameters": dictionary.n_numbers,
    }


def _dictionary_facts(dictionary: Dictionary) -> dict[str, Any]:
    """The sizes and the coherence of a dictionary.

    The coherence is the largest inner product of two columns, for each factor or, for a sum of
    Kronecker products, of the whole dictionary.
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
