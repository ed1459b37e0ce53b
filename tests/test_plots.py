"""Displays: what is drawn, where, and that drawing needs matplotlib only when it is asked for."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.plots import ComparisonDisplay, ConvergenceDisplay, DictionaryDisplay

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

HISTORY = {"rmse": [3.0, 2.0, 1.5], "seconds": [0.5, 0.9, 1.4]}


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


def random_dictionary(*shapes):
    rng = np.random.default_rng(0)
    return KroneckerDictionary.normalized([rng.standard_normal(shape) for shape in shapes])


def random_sum(n_terms, *shapes):
    rng = np.random.default_rng(0)
    return KroneckerSumDictionary(
        [[rng.standard_normal(shape) for shape in shapes] for _ in range(n_terms)]
    )


def test_the_mosaic_holds_each_atom_as_an_outer_product_scaled_to_one():
    d = random_dictionary((4, 5), (6, 3))
    canvas = DictionaryDisplay(d).mosaic()
    zoom, bar = 4, (4, 6)  # 24 pixels for the longer side; a quarter of each tile
    for i in range(5):
        for j in range(3):
            row = 1 + bar[0] + 3 + i * (4 * zoom + 1)
            column = 1 + bar[1] + 3 + j * (6 * zoom + 1)
            tile = canvas[row : row + 4 * zoom : zoom, column : column + 6 * zoom : zoom]
            atom = np.outer(d.factors[0][:, i], d.factors[1][:, j])
            assert np.allclose(tile, atom / np.abs(atom).max())
            assert np.isnan(canvas[row - 1]).all()
            assert np.isnan(canvas[:, column - 1]).all()
    assert np.nanmax(np.abs(canvas)) == 1


def test_the_mosaic_of_a_sum_holds_its_atoms_and_no_factors():
    d = random_sum(3, (4, 5), (6, 3))
    display = DictionaryDisplay.from_dictionary(d)
    canvas, zoom = display.mosaic(), 4
    assert canvas.shape == (1 + 5 * (4 * zoom + 1), 1 + 3 * (6 * zoom + 1))
    atoms = d.to_dense().T.reshape(5, 3, 4, 6)
    for i in range(5):
        for j in range(3):
            row, column = 1 + i * (4 * zoom + 1), 1 + j * (6 * zoom + 1)
            tile = canvas[row : row + 4 * zoom : zoom, column : column + 6 * zoom : zoom]
            assert np.allclose(tile, atoms[i, j] / np.abs(atoms[i, j]).max())
            assert np.isnan(canvas[row - 1]).all()
            assert np.isnan(canvas[:, column - 1]).all()
    assert display.ax_.get_title() == "4 × 6 patches, 5 × 3 atoms, 3 terms"
    assert not display.ax_.texts
    assert display.panels_ == [display.ax_]


def test_a_sum_of_one_term_is_drawn_as_its_factors_are():
    d = random_sum(1, (4, 5), (6, 3))
    plain = KroneckerDictionary(d.coding_factors)
    mosaics = [DictionaryDisplay(each).mosaic() for each in (d, plain)]
    np.testing.assert_array_equal(*mosaics)
    assert DictionaryDisplay.from_dictionary(d).ax_.get_title() == "4 × 6 patches, 5 × 3 atoms"


def test_a_huge_dictionary_is_shown_in_part():
    d = random_dictionary((64, 100), (8, 2))
    display = DictionaryDisplay.from_dictionary(d)
    assert max(display.mosaic().shape) < 4200
    assert display.ax_.get_title() == "64 × 8 patches, 100 × 2 atoms; the first 63 × 2"


@pytest.mark.parametrize("shapes", [[(4, 5)], [(3, 4), (5, 2), (2, 3)]])
def test_other_numbers_of_modes_get_one_panel_per_factor(shapes):
    d = random_dictionary(*shapes)
    display = DictionaryDisplay.from_dictionary(d)
    assert len(display.panels_) == len(shapes)
    for panel, shape in zip(display.panels_, shapes, strict=True):
        assert panel.images[0].get_array().shape == shape


def test_a_sum_of_three_modes_gets_a_row_of_panels_per_term():
    d = random_sum(2, (3, 4), (5, 2), (2, 3))
    figure = Figure(figsize=(3, 3), dpi=40)
    display = DictionaryDisplay.from_dictionary(d, ax=figure.subplots())
    figure.canvas.draw()
    assert len(display.panels_) == 6
    names = [panel.get_title() for panel in display.panels_]
    assert names[0] == "$D_{1}^{(1)}$"
    assert names[-1] == "$D_{3}^{(2)}$"
    for mode, stack in enumerate(d.stacks):
        shown_factors = [display.panels_[3 * r + mode].images[0].get_array() for r in range(2)]
        # Terms share a scale: how much each says can be compared.
        scale = np.abs(stack).max(axis=(0, 1))
        np.testing.assert_allclose(np.stack(shown_factors), stack / scale)


def test_a_sum_over_one_mode_is_drawn_as_its_matrix():
    d = random_sum(3, (4, 7))
    display = DictionaryDisplay.from_dictionary(d)
    assert len(display.panels_) == 1
    D = d.to_dense()
    np.testing.assert_allclose(display.panels_[0].images[0].get_array(), D / np.abs(D).max(axis=0))


def test_a_dictionary_is_drawn_where_it_is_asked_for(tmp_path):
    figure, ax = pyplot.subplots()
    display = DictionaryDisplay.from_dictionary(random_dictionary((4, 5), (6, 3)), ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert pyplot.get_fignums() == [1]
    assert ax.get_title() == "4 × 6 patches, 5 × 3 atoms"
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_convergence_is_drawn_against_iterations_and_seconds():
    display = ConvergenceDisplay.from_history(HISTORY, name="first")
    by_iteration, by_seconds = (ax.lines[0] for ax in display.axes_)
    assert by_iteration.get_xdata().tolist() == [0, 1, 2]
    assert by_seconds.get_xdata().tolist() == HISTORY["seconds"]
    assert by_iteration.get_ydata().tolist() == HISTORY["rmse"]
    again = ConvergenceDisplay.from_history(HISTORY, name="second", axes=display.axes_)
    assert len(again.axes_[0].lines) == 2
    assert again.figure_ is display.figure_
    assert [text.get_text() for text in again.axes_[1].get_legend().get_texts()] == [
        "first",
        "second",
    ]


def test_an_estimator_is_drawn_as_its_history_and_its_dictionary_are():
    model = KroneckerDictionaryLearning((5, 3), n_nonzero_coefs=2, max_iter=1, random_state=0)
    for display in (ConvergenceDisplay, DictionaryDisplay):
        with pytest.raises(NotFittedError, match="KroneckerDictionaryLearning instance is not"):
            display.from_estimator(model)
    model.fit(np.random.default_rng(0).standard_normal((40, 4, 3)))
    display = ConvergenceDisplay.from_estimator(model)
    assert display.history is model.history_
    assert display.axes_[1].get_legend() is None
    _, ax = pyplot.subplots()
    display = DictionaryDisplay.from_estimator(model, ax=ax, cmap="viridis")
    assert display.dictionary is model.dictionary_
    assert display.ax_ is ax
    assert ax.images[0].get_cmap().name == "viridis"


def test_a_thinned_history_is_drawn_at_its_iterations():
    display = ConvergenceDisplay.from_history({**HISTORY, "iteration": [0, 50, 100]})
    assert display.axes_[0].lines[0].get_xdata().tolist() == [0, 50, 100]


def test_nonzeros_are_drawn_if_asked_for():
    history = {**HISTORY, "mean_nonzeros": [6, 5, 4]}
    display = ConvergenceDisplay.from_history(history, quantity="mean_nonzeros")
    assert display.axes_[0].lines[0].get_ydata().tolist() == [6, 5, 4]
    assert display.axes_[0].get_ylabel() == "nonzeros per sample"
    with pytest.raises(ValueError, match="quantity='seconds' cannot be drawn; pass one of rmse"):
        ConvergenceDisplay(history, quantity="seconds")


def test_one_iteration_is_visible():
    display = ConvergenceDisplay.from_history({"rmse": [3.0], "seconds": [1.0]})
    assert display.axes_[0].lines[0].get_marker() == "o"


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({"rmse": [1.0]}, "history has 1 values of 'rmse' and 0 of 'seconds'.*pass the history_"),
        ({"rmse": [], "seconds": []}, "history has 0 values of 'rmse' and 0 of 'seconds'"),
    ],
)
def test_a_history_that_cannot_be_drawn_is_refused(history, message):
    with pytest.raises(ValueError, match=message):
        ConvergenceDisplay.from_history(history)


def test_axes_must_be_two():
    _, ax = pyplot.subplots()
    with pytest.raises(ValueError, match="axes has 1 entries; pass two"):
        ConvergenceDisplay.from_history(HISTORY, axes=[ax])


def shown(ax):
    return ax.images[0].get_array()


@pytest.mark.parametrize("shape", [(12, 9), (12, 9, 3)])
def test_images_are_compared_on_one_scale(shape):
    before, after = np.full(shape, 51, np.uint8), np.full(shape, 51, np.uint8)
    after[:6] = 255
    after[6:8] = 0
    display = ComparisonDisplay.from_images(before, after, after, names=("a", "b"))
    assert [ax.get_title() for ax in display.axes_[:2]] == ["a", "b"]
    assert display.axes_[2].get_title() == "difference, −210 to 210"
    assert display.axes_[3].get_title() == "reference"
    assert np.allclose(shown(display.axes_[0]), 0.2)
    assert np.allclose(shown(display.axes_[1]), after / 255)
    assert np.allclose(shown(display.axes_[2])[8:], 0.5)
    assert np.allclose(shown(display.axes_[2])[:6], 0.5 + 204 / 420)
    assert np.allclose(shown(display.axes_[2])[6:8], 0.5 - 51 / 420)


def test_the_error_is_drawn_if_asked_for():
    image = np.zeros((4, 5), np.uint8)
    display = ComparisonDisplay.from_images(image + 9, image + 2, image, against="reference")
    assert display.axes_[2].get_title() == "error, −2 to 2"
    assert np.allclose(shown(display.axes_[2]), 1)


def test_images_of_floats_are_shown_between_their_extremes():
    after = np.linspace(-2.0, 6.0, 20).reshape(4, 5)
    display = ComparisonDisplay.from_images(np.full((4, 5), np.nan), after)
    assert np.allclose(shown(display.axes_[1]), (after + 2) / 8)
    assert np.allclose(shown(display.axes_[0]), 0)
    flat = ComparisonDisplay.from_images(np.zeros((4, 5)), np.zeros((4, 5)))
    assert np.allclose(shown(flat.axes_[2]), 0.5)


@pytest.mark.parametrize(
    ("differences", "limit"),
    [([0.0], 1), ([-3.14], 3.2), ([0.00512], 0.0052), ([99.1], 100), ([0] * 999 + [7], 7)],
)
def test_the_scale_of_differences_is_a_round_number_that_covers_nearly_all(differences, limit):
    before = np.zeros((1, len(differences)))
    display = ComparisonDisplay.from_images(before, before + differences)
    assert display.limit_ == pytest.approx(limit)


def test_images_are_compared_where_it_is_asked_for():
    image = np.zeros((4, 4), bool)
    figure, axes = pyplot.subplots(1, 3)
    display = ComparisonDisplay.from_images(image, ~image, axes=axes)
    assert display.figure_ is figure
    assert pyplot.get_fignums() == [1]
    with pytest.raises(ValueError, match="axes has 3 entries; pass 4"):
        ComparisonDisplay.from_images(image, image, image, axes=axes)


def test_images_that_cannot_be_compared_are_refused():
    image = np.zeros((4, 4))
    with pytest.raises(ValueError, match=r"after has shape \(4,\); pass images"):
        ComparisonDisplay(image[0], image[0])
    with pytest.raises(ValueError, match=r"before has shape \(3, 4\) and after \(4, 4\)"):
        ComparisonDisplay(image[1:], image)
    with pytest.raises(ValueError, match="reference has shape"):
        ComparisonDisplay(image, image, image[1:])
    for against in ("after", "reference"):
        with pytest.raises(ValueError, match=f"against='{against}' is no image to compare with"):
            ComparisonDisplay(image, image, against=against)


def test_matplotlib_is_not_imported_before_something_is_drawn():
    code = "import sys, kronlearn; kronlearn.plots; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
