"""Docstrings that are completed from the base class, so that a parameter is described once."""

from __future__ import annotations

import inspect
import re

__all__ = ["with_inherited_entries"]

_SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def with_inherited_entries(own: str | None, inherited: str | None) -> str | None:
    """Return a docstring with the parameters and attributes that only its base class describes.

    Parameters
    ----------
    own : str or None
        A numpydoc docstring. Its own entries win, and those it adds come last.
    inherited : str or None
        The complete docstring of the base class.

    Returns
    -------
    str or None
        The complete docstring; ``own`` if one of the two is missing, as with ``python -OO``.

    Examples
    --------
    >>> from kronlearn.comparators.docstrings import with_inherited_entries
    >>> base = "Base.\\n\\nParameters\\n----------\\na : int\\n    One.\\nb : int\\n    Two.\\n"
    >>> own = "Own.\\n\\nParameters\\n----------\\nb : int\\n    Three.\\n"
    >>> print(with_inherited_entries(own, base), end="")
    Own.
    <BLANKLINE>
    Parameters
    ----------
    a : int
        One.
    b : int
        Three.
    """
    if own is None or inherited is None:
        return own
    summary, sections = _sections(own)
    _, base = _sections(inherited)
    merged = {}
    for name in ("Parameters", "Attributes"):
        entries = _entries(base.get(name, "")) | _entries(sections.pop(name, ""))
        merged[name] = "\n".join(entries.values())
    parts = [
        f"{name}\n{'-' * len(name)}\n{body}" for name, body in (merged | sections).items() if body
    ]
    return "\n\n".join([summary, *parts]) + "\n"


def _sections(docstring: str) -> tuple[str, dict[str, str]]:
    """What comes before the sections, and the text of each by its name."""
    summary, *rest = _SECTION.split(inspect.cleandoc(docstring))
    return summary.strip(), dict(zip(rest[::2], (body.strip() for body in rest[1::2]), strict=True))


def _entries(body: str) -> dict[str, str]:
    """The entries of a section by their names."""
    entries = [entry.rstrip() for entry in _ENTRY.split(body) if entry.strip()]
    return {entry.split(" : ")[0].strip(): entry for entry in entries}
