"""Fixtures and settings that every test file shares."""

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile(
    "kronlearn", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("kronlearn")


@pytest.fixture
def rng():
    """The same random numbers in every test."""
    return np.random.default_rng(20200708)
