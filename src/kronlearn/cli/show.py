"""``kronlearn show``: what is in a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kronlearn.cli.output import Output, facts_table, times
from kronlearn.dictionary import KroneckerDictionary
from kronlearn.persistence import load_dictionary, read_file

__all__ = ["run"]


def run(model: Path, picture: Path | None, output: Output) -> None:
    """Print the facts about a dictionary; draw it if a picture is asked for."""
    dictionary = load_dictionary(model)
    _, info = read_file(model, "dictionary")
    facts = dictionary_facts(dictionary)
    output.say(model)
    output.say(
        facts_table(
            [
                ("patch shape", times(facts["patch_shape"])),
                ("atoms", f"{times(facts['n_atoms'])} = {facts['n_codes']}"),
                ("atoms per number", f"{facts['redundancy']:.3g}"),
                ("dtype", facts["dtype"]),
                ("orthonormal", "yes" if facts["is_orthonormal"] else "no"),
                ("coherence of factors", ", ".join(f"{c:.3f}" for c in facts["coherence"])),
                *(
                    (str(_readable(name)).replace("_", " "), _readable(v))
                    for name, v in info.items()
                ),
            ],
        )
    )
    if picture is not None:
        from kronlearn.cli.pictures import save_dictionary_picture

        save_dictionary_picture(dictionary, picture)
        output.say(f"Wrote {picture}")
    output.finish({"model": str(model), **facts, "info": info})


def dictionary_facts(dictionary: KroneckerDictionary) -> dict[str, Any]:
    """Sizes and coherence; a factor's coherence is the largest inner product of two columns."""
    coherence = []
    for factor in dictionary.factors:
        columns = factor.astype(np.float64)
        gram = np.abs(columns.T @ columns)
        np.fill_diagonal(gram, 0)
        coherence.append(float(gram.max()))
    return {
        "patch_shape": dictionary.patch_shape,
        "n_atoms": dictionary.n_atoms,
        "n_features": dictionary.n_features,
        "n_codes": dictionary.n_codes,
        "redundancy": dictionary.n_codes / dictionary.n_features,
        "dtype": dictionary.dtype.name,
        "is_orthonormal": dictionary.is_orthonormal,
        "coherence": coherence,
    }


def _readable(value: Any) -> str | None:
    """A value of a file's info in short, with nothing in it that a terminal would obey."""
    if value is None:
        return None
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    text = "".join(c if c.isprintable() else "�" for c in str(value)[:201])
    return text if len(text) <= 200 else text[:200] + "…"
