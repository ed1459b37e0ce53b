"""Every instruction set of this processor can be listed, forced and trusted."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.images.aggregation import Averager


def test_the_baseline_is_always_there_and_comes_first():
    assert kl.instruction_sets()[0] == "baseline"
    assert len(set(kl.instruction_sets())) == len(kl.instruction_sets())


def test_the_best_set_is_the_default():
    if "KRONLEARN_INSTRUCTION_SET" in os.environ:
        pytest.skip("KRONLEARN_INSTRUCTION_SET is set for this run")
    assert kl.instruction_set() == kl.instruction_sets()[-1]


@pytest.mark.parametrize("name", kl.instruction_sets())
def test_a_set_can_be_forced_until_its_block_ends_or_fails(name):
    before = kl.instruction_set()
    with kl.use_instruction_set(name):
        with pytest.raises(ZeroDivisionError), kl.use_instruction_set("baseline"):
            raise ZeroDivisionError
        assert kl.instruction_set() == name
    assert kl.instruction_set() == before


def test_overlapping_blocks_of_two_threads_restore_their_own_sets():
    first, last = kl.instruction_sets()[0], kl.instruction_sets()[-1]
    before, began, may_end = kl.instruction_set(), Event(), Event()

    def other():
        with kl.use_instruction_set(last):
            began.set()
            may_end.wait(60)
            return kl.instruction_set()

    with ThreadPoolExecutor(1) as pool:
        with kl.use_instruction_set(first):
            result = pool.submit(other)
            began.wait(60)
        may_end.set()
        assert result.result() == last
    assert kl.instruction_set() == before


def test_passes_over_images_use_the_forced_set(rng):
    if len(kl.instruction_sets()) == 1:
        pytest.skip("this machine has only one instruction set")
    image = rng.standard_normal((40, 40)).astype(np.float32)
    passes = Averager((8, 8), (4, 4))
    factors = [np.linalg.qr(rng.standard_normal((8, 8)))[0] for _ in range(2)]
    settings = {"method": "omp", "width": 4, "tol": None}
    groups = {"group": 4, "window": (5, 5), "variance": 0.25}
    with kl.use_instruction_set("baseline"):
        slow = passes.code(image, factors, **settings)
        slowly_filtered = passes.filter_groups(image[None], None, image[None], **groups)
    assert slow.tobytes() != passes.code(image, factors, **settings).tobytes()
    filtered = passes.filter_groups(image[None], None, image[None], **groups)
    assert slowly_filtered.tobytes() != filtered.tobytes()


def test_an_unknown_set_is_refused_with_the_list_of_known_ones():
    with pytest.raises(ValueError, match=r"mmx.*baseline"), kl.use_instruction_set("mmx"):
        pass


def test_the_environment_chooses_the_set_at_import():
    def run_with(value):
        return subprocess.run(
            [sys.executable, "-c", "import kronlearn; print(kronlearn.instruction_set())"],
            env=os.environ | {"KRONLEARN_INSTRUCTION_SET": value},
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert run_with("baseline").stdout.split() == ["baseline"]
    refused = run_with("mmx")
    assert refused.returncode != 0
    assert "KRONLEARN_INSTRUCTION_SET" in refused.stderr
    assert "mmx" in refused.stderr


def test_all_sets_choose_the_same_atoms(rng):
    """Even if scores are so close that approximate ones cannot decide."""
    factors = reference.random_factors(rng, (8, 8), (8, 8))
    Y = rng.standard_normal((20_000, 8, 8))
    chosen = []
    for name in kl.instruction_sets():
        with kl.use_instruction_set(name):
            chosen.append(kl.sparse_code(Y, factors, 6, method="ols", n_jobs=2).indices)
    for indices in chosen[1:]:
        np.testing.assert_array_equal(indices, chosen[0])
