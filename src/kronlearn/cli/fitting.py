"""Learning with a progress bar, and model files that say how their dictionary was learned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.output import Output, facts_of, facts_table
from kronlearn.cli.record import thinned_history
from kronlearn.core.source import Source
from kronlearn.io.model_files import save_dictionary

__all__ = ["atom_usage", "fit_and_save", "fitted_entry", "learn_and_save"]

# Use of the atoms is counted in this many samples at most, read in this many runs.
_MAX_CODED = 20_000
_RUNS = 50


def fit_and_save(model: Any, samples: Any, save: Callable[[], None], shown: Output) -> None:
    """Fit a model with a progress bar and save it; on an interrupt, save what was learned."""
    try:
        with shown.learning("Learning", model.max_iter) as callback:
            model.set_params(callback=callback).fit(samples)
    except KeyboardInterrupt:
        if hasattr(model, "dictionary_"):
            save()
        else:
            warnings.warn("No iteration had ended, so nothing was saved.", stacklevel=1)
        raise
    save()


def learn_and_save(
    options: Mapping[str, Any],
    n_atoms: int | tuple[int, ...],
    samples: Source,
    origin: Mapping[str, Any],
    shown: Output,
) -> None:
    """Learn a dictionary with a command's options, save it, and print how it was learned.

    ``origin`` says where the samples come from.
    """
    sparsity, tol, output = options["sparsity"], options["tol"], options["output"]
    names = ("structure", "method", "max_iter", "n_jobs", "device", "time_budget", "checkpoint")
    model = kl.KroneckerDictionaryLearning(
        n_atoms,
        n_nonzero_coefs=6 if sparsity is None and tol is None else sparsity,
        tol=tol,
        n_terms=options.get("terms", 1),
        random_state=options["seed"],
        **{name: options[name] for name in names},
    )

    def save() -> None:
        dictionary, history = model.dictionary_, model.history_
        record = {
            "samples": len(samples),
            "structure": model.structure,
            "n_terms": dictionary.n_terms,
            "method": "threshold" if model.structure == "orthonormal" else model.method,
            "n_nonzero_coefs": model.n_nonzero_coefs,
            "tol": tol,
            "seed": model.random_state,
            **origin,
            "iterations": model.n_iter_,
            "stop_reason": model.stop_reason_,
            **fitted_entry(model),
            "atoms_replaced": int(np.sum(history["atoms_replaced"])),
            "seconds": float(history["seconds"][-1]),
            "kronlearn_version": kl.__version__,
        }
        usage = atom_usage(model, samples)
        info = {**record, "usage": usage, "history": thinned_history(history)}
        save_dictionary(dictionary, output, info=info)
        record = {"patch_shape": dictionary.patch_shape, "n_atoms": dictionary.n_atoms, **record}
        shown.say(facts_table([*facts_of(record), ("saved as", output)]))
        shown.finish({**record, "usage": usage, "history": history, "output": str(output)})

    fit_and_save(model, samples, save, shown)


def fitted_entry(model: Any) -> dict[str, float]:
    """RMSE and nonzeros per sample of the best dictionary, which the fitted model has."""
    history = model.history_
    goal = history["rmse" if model.tol is None else "mean_nonzeros"]
    # Of equally good dictionaries the estimator takes the last.
    best = len(goal) - 1 - int(np.argmin(goal[::-1]))
    return {name: float(history[name][best]) for name in ("rmse", "mean_nonzeros")}


def atom_usage(model: kl.KroneckerDictionaryLearning, samples: Source) -> dict[str, Any]:
    """Count how often codes of the samples use each column of each factor.

    Returns the number of "samples" that were coded, the number of "atoms" used at least once and,
    in "columns", for every mode the number of nonzeros that use each column of its factor.
    """
    dictionary = model.dictionary_
    coded = _evenly_chosen(samples).reshape(-1, *dictionary.patch_shape)
    codes = model.transform(coded)
    counts = np.bincount(codes.indices, minlength=dictionary.n_codes).reshape(dictionary.n_atoms)
    modes = range(counts.ndim)
    columns = [counts.sum(axis=tuple(m for m in modes if m != mode)).tolist() for mode in modes]
    return {"samples": len(coded), "atoms": int(np.count_nonzero(counts)), "columns": columns}


def _evenly_chosen(samples: Source) -> NDArray[Any]:
    """At most 20,000 samples, evenly spread."""
    if len(samples) <= _MAX_CODED:
        return samples.read(0, len(samples))
    # Neighbours in a file are read far faster together than one by one.
    length = _MAX_CODED // _RUNS
    starts = np.linspace(0, len(samples) - length, _RUNS).astype(int).tolist()
    return np.concatenate([samples.read(start, start + length) for start in starts])
