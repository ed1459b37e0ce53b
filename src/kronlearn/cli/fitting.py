"""Learning for ``learn`` and ``cube learn``: fit with a progress bar, save the model, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import kronlearn as kl
from kronlearn.cli.output import Output, facts_table, readable, times
from kronlearn.cli.record import atom_usage, fitted_entry, thinned_history
from kronlearn.core.source import Source
from kronlearn.io.model_files import save_dictionary

__all__ = ["default_sparsity", "learn_and_save"]


def learn_and_save(
    model: kl.KroneckerDictionaryLearning,
    samples: Source,
    place: Path,
    origin: Mapping[str, Any],
    output: Output,
) -> None:
    """Fit a model to samples, save its dictionary, and tell how it went.

    On an interrupt the dictionary of the last finished iteration is saved before the interrupt
    is raised again. ``origin`` says where the samples come from.
    """
    interrupt = None
    with output.learning("Learning", model.max_iter) as callback:
        model.set_params(callback=callback)
        try:
            model.fit(samples)
        except KeyboardInterrupt as problem:
            if not hasattr(model, "dictionary_"):
                raise
            interrupt = problem
    dictionary = model.dictionary_
    record = _record(model, len(samples), origin)
    if interrupt is not None:
        record["stop_reason"] = "interrupted"
    usage = atom_usage(
        dictionary,
        samples,
        n_nonzero_coefs=model.n_nonzero_coefs,
        tol=model.tol,
        method=record["method"],
        n_jobs=model.n_jobs,
        device=model.device,
    )
    info = {**record, "usage": usage, "history": thinned_history(model.history_)}
    save_dictionary(dictionary, place, info=info)
    sizes = {"patch_shape": dictionary.patch_shape, "n_atoms": dictionary.n_atoms}
    facts = [
        *((name.removeprefix("n_").replace("_", " "), times(s)) for name, s in sizes.items()),
        *((name.replace("_", " "), readable(value)) for name, value in record.items()),
    ]
    output.say(facts_table([*facts, ("saved as", place)]))
    output.finish(
        {**sizes, **record, "usage": usage, "history": model.history_, "output": str(place)}
    )
    if interrupt is not None:
        raise interrupt


def default_sparsity(sparsity: int | None, tol: float | None) -> int | None:
    """What was asked for, or 6 atoms unless the error is limited."""
    return 6 if sparsity is None and tol is None else sparsity


def _record(
    model: kl.KroneckerDictionaryLearning, n_samples: int, origin: Mapping[str, Any]
) -> dict[str, Any]:
    """What the model file says about how it was made."""
    history = model.history_
    return {
        "samples": n_samples,
        "structure": model.structure,
        "n_terms": model.dictionary_.n_terms,
        "method": "threshold" if model.structure == "orthonormal" else model.method,
        "n_nonzero_coefs": model.n_nonzero_coefs,
        "tol": model.tol,
        "seed": model.random_state,
        **origin,
        "iterations": model.n_iter_,
        "stop_reason": model.stop_reason_,
        **fitted_entry(model),
        "atoms_replaced": int(np.sum(history["atoms_replaced"])),
        "seconds": float(history["seconds"][-1]),
        "kronlearn_version": kl.__version__,
    }
