"""Run commands of the command line in tests."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from kronlearn.cli.app import app


def run(*arguments: object, **options: Any) -> Any:
    """The result of a command; ``input`` is what it reads from standard input."""
    return CliRunner().invoke(app, list(map(str, arguments)), **options)


def succeeds(*arguments: object, **options: Any) -> Any:
    """The result of a command that must succeed."""
    result = run(*arguments, **options)
    assert result.exit_code == 0, result.stderr
    return result


def record_of(*arguments: object) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    return dict(json.loads(succeeds(*arguments, "--json").stdout))


def fails(*arguments: object, code: int = 2, **options: Any) -> str:
    """The error of a command, on its only line of standard error."""
    result = run(*arguments, **options)
    assert result.exit_code == code, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert "Traceback" not in result.output
    return str(lines[0])


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save figures as empty files: rendering takes longer than everything else."""
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: Path(file).write_bytes(b""))
