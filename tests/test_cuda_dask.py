"""Dask workers with graphics cards: real ones if there is one, emulated always."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import kronlearn as kl
import reference
from cluster import DaskCluster, bits, image_like, model
from emulated_card import COMPILER, EmulatedCard
from kronlearn.core.engine import Coder, Task
from kronlearn.core.moments import ModeMoments, Moments
from kronlearn.cuda.shares import CardShare
from kronlearn.engines import host, selection
from kronlearn.engines.shares import Part, ThreadShare
from kronlearn.io.arrays import ArraySource

SHAPES = [((4, 5), (7, 6), 4), ((3, 4, 5), (4, 5, 6), 5), ((7,), (9,), 3)]
SUMS = [("none", -1), ("full", -1), ("xy", -1), ("mode", 0), ("mode", -2), ("mode-xy", -2)]
BLOCK = 64
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"monotone": False, "method": "omp"},
    "defaults": {},
    "per-mode": {"statistics": "per-mode"},
    "orthonormal": {"structure": "orthonormal"},
    "refits": {"n_refits": 1},
}

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class SharedCard(EmulatedCard):
    """An emulated card that several workers use, one at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()

    def launch(self, *arguments: Any) -> None:
        with self.lock:
            super().launch(*arguments)


EMULATED = SharedCard


@pytest.fixture
def workers(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], AbstractContextManager[None]]:
    """A cluster of so many workers that share the card, each in a process of its own if real."""

    @contextmanager
    def started(count: int) -> Iterator[None]:
        if not isinstance(card, EmulatedCard):
            with DaskCluster(tmp_path, threads=[1] * count):
                yield
            return
        for module in (host, selection):
            monkeypatch.setattr(module, "card", lambda: card)
        options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
        with LocalCluster(n_workers=count, **options) as cluster, Client(cluster):
            yield

    return started


def problem(
    rng: np.random.Generator, shape: Any, dtype: Any
) -> tuple[ArraySource, kl.KroneckerDictionary]:
    """Noisy sparse samples of five blocks, the last one not full, and a dictionary."""
    patch_shape, n_atoms, s = shape
    factors = reference.random_factors(rng, patch_shape, n_atoms)
    Y = reference.sparse_samples(rng, factors, 5 * BLOCK - 9, s, noise=0.3).astype(dtype)
    return ArraySource(Y, patch_shape), kl.KroneckerDictionary(factors)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sums", SUMS, ids=lambda sums: f"{sums[0]} {sums[1]}")
def test_a_card_sums_what_threads_sum(
    card: Any, rng: np.random.Generator, sums: Any, shape: Any, dtype: Any
) -> None:
    source, dictionary = problem(rng, shape, dtype)
    kind, mode = sums[0], sums[1] % len(shape[0]) if sums[1] != -1 else -1
    coder = Coder("omp", shape[2])
    whole = Part(source, 0, len(source), 0)
    threads = ThreadShare(1, BLOCK, source.dtype)
    codes = threads.room(len(source), shape[2])
    threads.add(whole, Task(dictionary, coder), Task(dictionary, coder).tree(5), codes)
    task = Task(dictionary, coder, "given", sums=kind, mode=mode)
    expected, found = task.tree(5), task.tree(5)
    threads.add(whole, task, expected, codes)
    share = CardShare(card, BLOCK, source.dtype)
    share.add(whole, task, found, share.adopted(codes))
    assert found.total()[3] == expected.total()[3]
    if kind == "none":
        return
    made, wanted = (in_moments(task, tree, len(source)) for tree in (found, expected))
    # Threads add up a few numbers in single precision where samples are.
    near = {"rtol": 0, "atol": wanted.energy * (1e-8 if dtype == np.float32 else 1e-13)}
    for name in ("xx", "xy") if mode < 0 else ("p", "c"):
        np.testing.assert_allclose(getattr(made, name), getattr(wanted, name), **near)
    np.testing.assert_allclose(made.energy, wanted.energy, **near)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is at hand")
@pytest.mark.parametrize("sums", SUMS[1:], ids=lambda sums: f"{sums[0]} {sums[1]}")
def test_the_threads_of_a_team_sum_what_one_sums(
    tmp_path: Path, rng: np.random.Generator, sums: Any
) -> None:
    class TeamsOfManyThreads(EmulatedCard):
        n_teams = 4

        def launch(self, file: str, kernel: str, n_teams: int, *arguments: Any) -> None:
            self.launch_blocks(file, kernel, 1, 32 * n_teams, *arguments)

    source, dictionary = problem(rng, SHAPES[0], np.float32)
    kind, mode = sums[0], -1 if sums[1] == -1 else sums[1] % 2
    task = Task(dictionary, Coder("omp", 4), "given", sums=kind, mode=mode)
    totals = []
    for number, card in enumerate((EmulatedCard, TeamsOfManyThreads)):
        folder = tmp_path / str(number)
        folder.mkdir()
        share, tree = CardShare(card(folder), BLOCK, source.dtype), task.tree(5)
        codes = ThreadShare(1, BLOCK, source.dtype).room(len(source), 4)
        codes.index[:], codes.nonzeros[:] = np.arange(3, 40, 10), np.arange(len(source)) % 5
        codes.value[:] = source.read(0, len(source))[:, :4]
        share.add(Part(source, 0, len(source), 0), task, tree, share.adopted(codes))
        totals.append(tree.total())
    np.testing.assert_allclose(totals[1], totals[0], rtol=0, atol=1e-13 * totals[0][0])


def in_moments(task: Task, tree: Any, n_samples: int) -> Any:
    """The moments that a finished tree makes."""
    dictionary = task.dictionary
    if task.mode < 0:
        sizes = dictionary.patch_shape, dictionary.n_atoms
        moments: Any = Moments.zeros(*sizes, with_xx=task.sums == "full")
    else:
        stack = dictionary.stacks[task.mode]
        moments = ModeMoments.zeros(task.mode, stack, with_p=task.sums == "mode")
    task.found(tree, n_samples, moments)
    return moments


def test_sums_have_the_same_bits_however_blocks_are_shared_out(
    card: Any, rng: np.random.Generator
) -> None:
    source, dictionary = problem(rng, SHAPES[0], np.float32)
    task = Task(dictionary, Coder("ols", 4), sums="full")
    totals = []
    for cuts in ([0, 5], [0, 1, 5], [0, 3, 4, 5]):
        tree = task.tree(5)
        for first, stop in pairwise(cuts):
            rows = first * BLOCK, min(stop * BLOCK, len(source))
            CardShare(card, BLOCK, source.dtype).add(Part(source, *rows, rows[0]), task, tree, None)
        totals.append(tree.total())
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_array_equal(totals[0], totals[2])


def test_workers_with_cards_end_with_the_same_bits_whatever_their_number(
    card: Any, workers: Any
) -> None:
    samples = image_like(1500, 6)
    usual = {"n_atoms": (6, 6), "block_size": 128, "max_iter": 4}
    # The processes of real workers take their time to start.
    counts = (1, 2, 3) if isinstance(card, EmulatedCard) else (1, 2)
    found: dict[str, list[Any]] = {name: [] for name in SETTINGS}
    for count in counts:
        with workers(count):
            for name, settings in SETTINGS.items():
                found[name].append(model(device="cuda", **usual, **settings).fit(samples))
    for name, settings in SETTINGS.items():
        first, *others = found[name]
        assert all(bits(first) == bits(other) for other in others), name
        alone = model(engine="threads", **usual, **settings).fit(samples)
        np.testing.assert_allclose(first.history_["rmse"], alone.history_["rmse"], rtol=1e-3)


def test_workers_with_cards_read_files_and_lazy_arrays(workers: Any, tmp_path: Path) -> None:
    samples = image_like(1000, 6)
    np.save(tmp_path / "samples.npy", samples)
    settings = {"n_atoms": (6, 6), "block_size": 128, "max_iter": 3, "device": "cuda"}
    with workers(2):
        same = bits(model(**settings).fit(samples))
        assert bits(model(**settings).fit(tmp_path / "samples.npy")) == same
        lazy = da.from_array(samples, chunks=(300, 6, 6))
        found = model(**settings).fit(lazy)
        assert bits(found) == same
        restored = found.inverse_transform(found.transform(lazy)).compute()
    codes = kl.sparse_code(samples, found.dictionary_, 4, method="ols")
    expected = found.inverse_transform(codes)
    errors = [np.linalg.norm((Y - samples).reshape(1000, -1), axis=1) for Y in (restored, expected)]
    np.testing.assert_allclose(*errors, rtol=1e-3, atol=1e-3)


def test_a_run_on_cards_resumes_from_a_checkpoint(workers: Any, tmp_path: Path) -> None:
    samples = image_like(1000, 6)
    settings = {"n_atoms": (6, 6), "block_size": 128, "device": "cuda", "checkpoint_every": 2}
    with workers(2):
        whole = model(max_iter=4, **settings).fit(samples)
        place = tmp_path / "run.safetensors"
        model(max_iter=2, checkpoint=place, **settings).fit(samples)
        resumed = model(max_iter=4, checkpoint=place, **settings).fit(samples)
    assert bits(resumed) == bits(whole)


def test_a_worker_that_leaves_changes_no_bits(workers: Any) -> None:
    samples = image_like(1500, 6)
    settings = {"n_atoms": (6, 6), "block_size": 128, "max_iter": 6, "device": "cuda"}

    def dismiss_one(progress: Any) -> None:
        client = Client.current()
        if progress.iteration == 3:
            client.retire_workers([next(iter(client.scheduler_info()["workers"]))])

    with workers(2):
        undisturbed = model(**settings).fit(samples)
        disturbed = model(callback=dismiss_one, **settings).fit(samples)
    assert bits(disturbed) == bits(undisturbed)
    assert disturbed.traffic_.steps_repeated > 0


def test_a_sample_that_is_not_finite_is_named(workers: Any) -> None:
    samples = image_like(1000, 6)
    samples[700, 2, 3] = np.nan
    with workers(2), pytest.raises(ValueError, match="first in sample 700"):
        model(n_atoms=(6, 6), block_size=128, device="cuda").fit(samples)


def test_a_worker_without_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_card() -> None:
        raise RuntimeError('device="cuda" found no graphics card; pass device="cpu".')

    monkeypatch.setattr(host, "card", no_card)
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(n_workers=1, **options) as cluster,
        Client(cluster),
        pytest.raises(RuntimeError, match=r"Worker inproc.*: device=.cuda. found no graphics card"),
    ):
        model(device="cuda").fit(image_like(500))
