"""Complete docstrings from those of base classes, so that a parameter is described once."""

from __future__ import annotations

import inspect
import re

__all__ = ["inherit_entries"]

_SECTION = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def inherit_entries(cls: type, base: type) -> None:
    """Add entries of the numpydoc docstring of ``base`` to that of ``cls``.

    All attributes of ``base`` are added, and those of its parameters that are attributes of
    ``cls``, as fields of a dataclass with defaults are. Entries of ``cls`` replace those of
    ``base`` with the same name; its other entries come last. Without docstrings, as under
    ``python -OO``, nothing happens.

    Examples
    --------
    >>> from kronlearn.comparators.docstrings import inherit_entries
    >>> class Base:
    ...     "Base.\\n\\nParameters\\n----------\\na : int\\n    One.\\nb : int\\n    Two.\\n"
    >>> class Own:
    ...     "Own.\\n\\nParameters\\n----------\\nc : int\\n    Three.\\n"
    ...     b, c = 2, 3
    >>> inherit_entries(Own, Base)
    >>> print(Own.__doc__, end="")
    Own.
    <BLANKLINE>
    Parameters
    ----------
    b : int
        Two.
    c : int
        Three.
    """
    if cls.__doc__ is None or base.__doc__ is None:
        return
    summary, sections = _sections(cls.__doc__)
    _, inherited = _sections(base.__doc__)
    merged = {}
    for name in ("Parameters", "Attributes"):
        entries = _entries(inherited.get(name, ""))
        if name == "Parameters":
            entries = {key: entry for key, entry in entries.items() if hasattr(cls, key)}
        merged[name] = "\n".join((entries | _entries(sections.pop(name, ""))).values())
    parts = [
        f"{name}\n{'-' * len(name)}\n{body}" for name, body in (merged | sections).items() if body
    ]
    cls.__doc__ = "\n\n".join([summary, *parts]) + "\n"


def _sections(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before the sections, and the text of each section."""
    summary, *rest = _SECTION.split(inspect.cleandoc(docstring))
    return summary.strip(), dict(zip(rest[::2], (body.strip() for body in rest[1::2]), strict=True))


def _entries(body: str) -> dict[str, str]:
    """Split a section into its entries, by name."""
    entries = [entry.rstrip() for entry in _ENTRY.split(body) if entry.strip()]
    return {entry.split(" : ")[0].strip(): entry for entry in entries}
