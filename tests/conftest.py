"""Fixtures and settings that every test file shares."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import emulated_card
from emulated_card import COMPILER, ArraysOnCard, EmulatedCard
from kronlearn.cuda.device import card as real_card

# In the background of a shell interrupts are ignored; some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "kronlearn", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("kronlearn")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled kernels where pytest is told to keep things, if it is."""
    folder = config.getini("cache_dir")
    if folder != ".pytest_cache":
        emulated_card.CACHE = config.rootpath / folder / "kernels"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to compile kernels while other tests run."""
    tests = [item.path.name for item in session.items]
    if COMPILER and any(name.startswith("test_cuda") for name in tests):
        emulated_card.compile_ahead()


def pytest_sessionfinish() -> None:
    """Leave kernels that no test waited for."""
    emulated_card.stop_compiling()


@pytest.fixture
def rng():
    """The same random numbers in every test."""
    return np.random.default_rng(20200708)


@pytest.fixture(scope="module", params=["emulated", "cuda"])
def card(request: pytest.FixtureRequest) -> Any:
    """A graphics card if there is one, and one that is emulated: as the module's EMULATED says."""
    if request.param == "emulated":
        if COMPILER is None:
            pytest.skip("no C++ compiler is at hand")
        return getattr(request.module, "EMULATED", EmulatedCard)()
    try:
        return real_card()
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"no graphics card: {problem}")


@pytest.fixture
def on_card(card: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The card, which ``device="cuda"`` means then."""
    monkeypatch.setattr("kronlearn.cuda.device._current", lambda: card)
    if isinstance(card, EmulatedCard):
        monkeypatch.setattr("kronlearn.io.device_arrays.cupy", ArraysOnCard)
    return card
