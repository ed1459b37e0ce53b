"""Table I and Figures 1 and 2: settings, samples, claims, figures, runs that resume."""

import dataclasses
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import kronlearn as kl
from command_line import draw_nothing, fails, record_of, succeeds
from kronlearn.experiments import (
    comparison,
    comparison_figures,
    comparison_runs,
    report,
)
from kronlearn.experiments.data import (
    included_images,
)
from kronlearn.experiments.methods import DEFAULT_METHODS, METHODS, methods_named
from kronlearn.experiments.published import (
    TABLE1,
    TABLE1_SETTINGS,
)
from kronlearn.experiments.store import Store

STAND_INS = ("camera", "brick", "moon")


@pytest.fixture(scope="module")
def pixels() -> list[NDArray[np.float32]]:
    return included_images(STAND_INS)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, pixels: list[NDArray[np.float32]]) -> Path:
    """A folder with images that have the names of the paper's images."""
    folder = tmp_path_factory.mktemp("images")
    for name, image in zip(comparison.IMAGES, pixels, strict=True):
        Image.fromarray(image.astype(np.uint8)).save(folder / f"{name}.png")
    return folder


Entry = Callable[[comparison_runs.Setting, str], tuple[float, float]]


def made_up(experiment: str, entry: Entry) -> list[comparison_runs.Result]:
    """Results of two draws, 0.1 above and below an RMSE; ``entry`` returns it and the seconds.

    The RMSE of the samples learned from is 0.05 lower than that of the others.
    """
    results = []
    settings = comparison_runs.settings(experiment)
    for at, method, draw in product(settings, DEFAULT_METHODS, range(2)):
        rmse, seconds = entry(at, method)
        last = rmse + (0.1 if draw else -0.1)
        curve = tuple(np.linspace(last + 1, last, at.iterations + 1))
        run = (*dataclasses.astuple(at), draw, method, METHODS[method].size(at.m, at.n), 0)
        errors = (last - 0.05, last, last - 0.05, last, curve)
        results.append(comparison_runs.Result(*run, seconds, seconds / 100, *errors))
    return results


def as_claimed(setting: comparison_runs.Setting, method: str) -> tuple[float, float]:
    """An RMSE and seconds for which every claim holds; the paper's times where it has some."""
    errors = {"default": 4.5, "exchange": 4.4, "sum2": 4.2, "sum4": 4.0, "orthonormal": 5.5}
    errors |= {"general": 4.6, "PairAK-SVD": 4.62, "TeFDiL": 4.8}
    errors |= {"AK-SVD": 4.39, "AK-SVD n²": 4.01}
    seconds = 1.0
    if method in TABLE1 and (setting.n, setting.s) in TABLE1_SETTINGS:
        seconds = TABLE1[method][TABLE1_SETTINGS.index((setting.n, setting.s))]
    return errors.get(method, 4.7), 0.5 if method == "default" else seconds


def verdicts(experiment: str, entry: Entry) -> dict[str, report.Claim]:
    claims = comparison.claims(experiment, comparison.by_setting(made_up(experiment, entry)))
    return {claim.text: claim for claim in claims}


def held(claim: report.Claim) -> int:
    return sum(outcome.holds for outcome in claim.outcomes)


def starting(claims: dict[str, report.Claim], start: str) -> report.Claim:
    return next(claim for text, claim in claims.items() if text.startswith(start))


def test_the_comparison_has_the_papers_settings():
    first, second = map(comparison_runs.settings, ("figure1", "figure2"))
    assert first == comparison_runs.settings("table1")
    assert {(at.m, at.samples, at.iterations) for at in first} == {(8, 9216, 100)}
    assert set(first) < set(second)
    assert (len(second), {at.samples for at in second if at.m == 16}) == (12, {2304})
    sizes = {name: METHODS[name].size(8, 16) for name in DEFAULT_METHODS}
    expected = {"general": "16x16", "orthonormal": "8x8", "sum4": "4 x 16x16", "AK-SVD": "128"}
    assert sizes | expected | {"AK-SVD n²": "256"} == sizes


def test_every_patch_is_learned_from_or_held_out_without_its_mean(
    pixels: list[NDArray[np.float32]],
):
    drawn, held_out = comparison_runs.draw_samples(pixels, 16, 2304, 3)
    assert (drawn.shape, held_out.shape) == ((2304, 16, 16), (768, 16, 16))
    assert drawn.dtype == held_out.dtype == np.float32
    tiles = np.concatenate([image.reshape(32, 16, 32, 16).swapaxes(1, 2) for image in pixels])
    tiles = tiles.reshape(-1, 256)
    every = np.concatenate([drawn, held_out]).reshape(-1, 256)
    assert abs(every.mean(axis=1)).max() < 1e-4
    spread = [np.sort(part.std(axis=1)) for part in (tiles, every)]
    np.testing.assert_allclose(*spread, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(drawn, comparison_runs.draw_samples(pixels, 16, 2304, 3)[0])
    assert (drawn != comparison_runs.draw_samples(pixels, 16, 2304, 4)[0]).any()
    with pytest.raises(ValueError, match="768 held-out ones were asked for; the images have 3072"):
        comparison_runs.draw_samples(pixels, 16, 2305, 0)


def test_the_norms_of_atoms_do_not_change_the_error(rng: np.random.Generator):
    samples = rng.standard_normal((40, 4, 4)).astype(np.float32)
    atoms = kl.KroneckerDictionary.normalized(list(rng.standard_normal((2, 4, 6)))).to_dense()
    norms = rng.uniform(0.1, 9, 36)
    scaled, expected = (
        comparison_runs._ols_rmse(samples, SimpleNamespace(to_dense=lambda m=matrix: m), 3)
        for matrix in (norms * atoms, atoms)
    )
    assert scaled == pytest.approx(expected, rel=1e-9)


def test_methods_with_the_same_number_of_atoms_have_the_same_start(rng: np.random.Generator):
    samples = rng.standard_normal((30, 4, 4)).astype(np.float32)
    names = ("default", "general", "sum2", "MOD")
    learners = {name: METHODS[name].learner(samples, 6, 2, 1, draw=5) for name in names}
    assert len({learner.init for learner in learners.values()}) == 1
    assert learners["MOD"].n_atoms == 36
    assert METHODS["general"].learner(samples, 6, 2, 1, draw=6).init != learners["general"].init
    orthonormal = METHODS["orthonormal"].learner(samples, 6, 2, 1, draw=5)
    assert orthonormal.n_atoms == (4, 4)
    assert orthonormal.init.is_orthonormal


def test_methods_are_found_by_name():
    names = methods_named("general, ak-svd N2,default")
    assert names == ("default", "general", "AK-SVD n²")
    assert methods_named("all") == tuple(METHODS)
    with pytest.raises(ValueError, match="no method 'magic'; choose from default, general"):
        methods_named("magic")


def test_all_claims_can_hold():
    claims = verdicts("table1", as_claimed)
    assert len(claims) == 8
    assert all(held(claim) == len(claim.outcomes) == 4 for claim in claims.values())
    # A figure makes no claims about times.
    assert len(verdicts("figure1", as_claimed)) == 6


def test_claims_are_missed_where_the_numbers_contradict_them():
    def worse(setting: comparison_runs.Setting, method: str) -> tuple[float, float]:
        rmse, seconds = as_claimed(setting, method)
        if setting.n == 8:
            rmse += {"default": 0.2, "TeFDiL": -0.3, "PairAK-SVD": 0.1}.get(method, 0)
            seconds *= {"PairAK-SVD": 0.4, "TeFDiL": 0.05, "default": 3.0}.get(method, 1)
        return rmse, seconds

    claims = verdicts("table1", worse)
    lowest = starting(claims, "The default is lowest")
    assert lowest.outcomes[0] == report.Outcome("8 × 8, n = 8, s = 6", False, "1.044 times TeFDiL")
    for start in (
        *("The default is lowest", "The default is faster", "PairAK-SVD is within"),
        *("TeFDiL is above", "An iteration of PairAK"),
    ):
        assert held(starting(claims, start)) == 2, start
    assert held(starting(claims, "Four terms are below AK-SVD")) == 4


@pytest.mark.parametrize("experiment", ["figure1", "figure2"])
def test_a_figure_has_four_panels_and_one_legend(experiment: str):
    results = made_up(experiment, lambda _, method: (40.0 if method == "TeFDiL" else 4.5, 1.0))
    figure = getattr(comparison_figures, experiment)(comparison.by_setting(results))
    expected = [f"8 × 8, n = {n}, s = {s}" for n, s in TABLE1_SETTINGS]
    if experiment == "figure2":
        expected = [f"{m} × {m} patches, s = {s}" for m, s in comparison_runs.FIGURE2_PANELS]
        assert list(figure.axes[0].get_xticks()) == list(comparison_runs.FIGURE2_SIZES)
    else:
        # A method far above the others does not flatten their curves.
        assert all(ax.get_ylim()[1] < 7 for ax in figure.axes)
    assert [ax.get_title() for ax in figure.axes] == expected
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == list(DEFAULT_METHODS)


def test_the_curve_of_a_run_that_stopped_early_goes_on_at_its_last_value():
    at = comparison_runs.Setting(8, 8, 6, 100, 4)
    draws = [SimpleNamespace(held_out_by_iteration=c) for c in ((5, 4, 3), (6, 5, 4, 3, 2))]
    curves = comparison_figures._curves(at, draws)
    np.testing.assert_array_equal(curves, [[5, 4, 3, 3, 3], [6, 5, 4, 3, 2]])


def test_experiments_share_a_csv_file_and_repeat_no_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    draw_nothing(monkeypatch)
    monkeypatch.setattr(comparison_runs, "_QUICK_SAMPLES", {8: 200, 16: 200})
    common = ("--quick", "--images", images, "-o", tmp_path, "--methods", "default,orthonormal")
    record = record_of("reproduce", "table1", *common)
    assert record["images_of_the_paper"]
    assert [row["method"] for row in record["rows"]] == ["default", "orthonormal"] * 4
    assert {outcome["at"] for outcome in record["claims"][0]["outcomes"]} == {
        str(at) for at in comparison_runs.settings("table1")
    }

    # A time that no run takes shows that the result was read from the file.
    file = tmp_path / "comparison.csv"
    before = Store(file, comparison_runs.Result).rows
    for row in before:
        assert len(row.held_out_by_iteration) == row.iterations + 1
        assert 0 < row.seconds_per_iteration < row.seconds
        assert row.own_train_rmse == pytest.approx(row.train_rmse, rel=1e-4)
        assert row.own_held_out_rmse == pytest.approx(row.held_out_rmse, rel=1e-4)
        assert row.held_out_rmse in row.held_out_by_iteration
    text = file.read_text("utf-8").replace(f",{before[0].seconds:.6g},", ",1234.5,", 1)
    file.write_text(text, "utf-8")
    assert record_of("reproduce", "figure1", *common)["rows"][0]["seconds"] == 1234.5
    assert file.read_text("utf-8") == text

    # Another experiment adds only the results that the file lacks.
    succeeds("reproduce", "figure2", *common)
    assert file.read_text("utf-8").startswith(text)
    assert len(Store(file, comparison_runs.Result).rows) == 24


def test_the_report_of_a_quick_run_is_marked_and_has_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(comparison_runs, "_QUICK_SAMPLES", {8: 20})
    monkeypatch.setattr(comparison, "QUICK_METHODS", ("general", "AK-SVD"))
    text = succeeds("reproduce", "figure1", "--quick", "-o", tmp_path).output
    assert text.lower().count("quick run") == 1
    results = Store(tmp_path / "comparison.csv", comparison_runs.Result).rows
    assert [row.method for row in results] == ["general", "AK-SVD"] * 4
    page = (tmp_path / "figure1.md").read_text("utf-8")
    assert "quick run" in page
    assert all("stand in for the paper's images" in each for each in (text, page))
    with Image.open(tmp_path / "figure1.png") as image:
        assert image.width > 3 * image.height


def test_results_of_other_samples_are_not_reused(pixels: list[NDArray[np.float32]], tmp_path: Path):
    file = tmp_path / "comparison.csv"
    wanted = [comparison_runs.Setting(8, 8, 6, 100, 2)], ("general",), 1
    (first,) = comparison_runs.results(*wanted, pixels, file)
    (other,) = comparison_runs.results(*wanted, pixels[::-1], file)
    assert first.checksum != other.checksum
    assert first.held_out_rmse != other.held_out_rmse
    assert list(comparison_runs.results(*wanted, pixels, file)) == [first]
    (again,) = comparison_runs.results(*wanted, pixels, tmp_path / "again.csv")
    assert again.held_out_by_iteration == first.held_out_by_iteration


def test_an_interrupted_experiment_keeps_finished_runs(
    pixels: list[NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "comparison.csv"
    wanted = [comparison_runs.Setting(8, 8, 6, 100, 2)], ("general", "MOD"), 1
    running = comparison_runs.results(*wanted, pixels, file)
    first = next(running)
    with monkeypatch.context() as patch:
        patch.setattr(kl.comparators.MOD, "fit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(running)
    assert Store(file, comparison_runs.Result).rows == [first]
    general, mod = comparison_runs.results(*wanted, pixels, file)
    assert (general.atoms, mod.atoms) == ("8x8", "64")
    assert mod.train_rmse < general.train_rmse


def test_a_folder_without_the_papers_images_is_refused(tmp_path: Path):
    command = ("reproduce", "table1", "--images", tmp_path, "-o", tmp_path / "out")
    assert "lena.png does not exist" in fails(*command)
    (tmp_path / "out" / "comparison.csv").parent.mkdir(exist_ok=True)
    (tmp_path / "out" / "comparison.csv").write_text("a,b\n", "utf-8")
    command = ("reproduce", "figure1", "--quick", "-o", tmp_path / "out")
    assert "does not hold results of this experiment" in fails(*command)
