"""Fixtures and settings that every test file shares."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from emulated_card import COMPILER, EmulatedCard
from kronlearn.cuda.device import card as real_card

# In the background of a shell interrupts are ignored; some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "kronlearn", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("kronlearn")

# Whoever asks for the card.
ASKING = ("engines.selection", "engines.workers", "images.noise", "sources.stored_samples")


@pytest.fixture
def rng():
    """The same random numbers in every test."""
    return np.random.default_rng(20200708)


@pytest.fixture(scope="module", params=["emulated", "cuda"])
def card(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A graphics card if there is one, and one that is emulated: as the module's EMULATED says."""
    if request.param == "emulated":
        if COMPILER is None:
            pytest.skip("no C++ compiler is at hand")
        kind = getattr(request.module, "EMULATED", EmulatedCard)
        return kind(tmp_path_factory.mktemp("kernels"))
    try:
        return real_card()
    except (ImportError, RuntimeError) as problem:
        pytest.skip(f"no graphics card: {problem}")


@pytest.fixture
def on_card(card: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The card, which ``device="cuda"`` means then."""
    for place in ASKING:
        monkeypatch.setattr(f"kronlearn.{place}.card", lambda: card)
    return card
