"""Run commands of the command line in tests of experiments and benchmarks."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from kronlearn.cli.app import app


def invoke(*arguments: object, code: int = 0) -> str:
    """Run a command that ends with an exit code; return its output."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def record_of(*arguments: object) -> dict:
    """Run a command with ``--json``; return its record."""
    return json.loads(invoke(*arguments, "--json"))


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save figures as empty files: rendering takes longer than everything else."""
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: Path(file).write_bytes(b""))
