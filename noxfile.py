#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.2"]
# ///
"""Tasks for developers: ``nox`` runs the tests and the checks, ``nox -s docs`` or another alone."""

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

PROJECT = nox.project.load_toml("pyproject.toml")


def group(name: str) -> list[str]:
    """The packages of a dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


@nox.session
def test(session: nox.Session) -> None:
    """Run the tests; arguments go to pytest: ``nox -s test -- -m slow``."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, layers and the format of C++."""
    session.install("-e", ".", *group("lint"))
    session.run("pre-commit", "run", "--all-files")


@nox.session(default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation; warnings are errors."""
    session.install(".[docs]")
    session.run("make", "-C", "docs", "html", external=True)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time the last commit with asv, or those that are named: ``nox -s bench -- v0.2.0..main``."""
    session.install(*group("speed"))
    config = "experiments/asv/asv.conf.json"
    session.run("asv", "machine", "--yes", "--config", config)
    session.run("asv", "run", "--config", config, *(session.posargs or ["HEAD^!"]))


if __name__ == "__main__":
    nox.main()
