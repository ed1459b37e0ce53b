"""Docstrings of public names are complete: numpydoc's own checks find nothing."""

import inspect
from collections.abc import Iterator

import pytest
from numpydoc.validate import validate

import kronlearn as kl
import kronlearn.xarray

PACKAGES = (
    kl,
    kl.comparators,
    kl.convolutional,
    kl.cuda,
    kl.hyperspectral,
    kl.images,
    kl.plots,
    kl.xarray,
)
CHECKED = ("GL", "SS", "PR", "RT", "EX01")
# The house style begins on the line of the quotes.
LEFT_OUT = {"GL01"}


def public_names() -> Iterator[str]:
    """Full names of public functions and classes, and of what kronlearn's classes define."""
    seen = set()
    for package in PACKAGES:
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.ismodule(public):
                continue
            yield f"{package.__name__}.{name}"
            for member, value in inspect.getmembers(public) if inspect.isclass(public) else ():
                code = inspect.unwrap(getattr(value, "fget", getattr(value, "__func__", value)))
                home = getattr(code, "__module__", None) or ""
                # What several classes inherit is checked once.
                if not member.startswith("_") and home.startswith("kronlearn") and code not in seen:
                    seen.add(code)
                    yield f"{package.__name__}.{name}.{member}"


@pytest.mark.parametrize("name", list(public_names()))
def test_numpydoc_finds_no_fault_in_a_public_docstring(name: str) -> None:
    found = validate(name)
    # The example of a class shows its properties.
    left_out = LEFT_OUT | ({"EX01"} if found["type"] == "property" else set())
    faults = [
        f"{code}: {text}"
        for code, text in found["errors"]
        if code.startswith(CHECKED) and code not in left_out
    ]
    assert faults == [], name
