"""Displays: what they draw, and in which axes."""

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import kronlearn as kl
from kronlearn.core.dictionary import KroneckerDictionary
from kronlearn.core.kronecker_sum import KroneckerSumDictionary
from kronlearn.estimators import KroneckerDictionaryLearning
from kronlearn.plots import ComparisonDisplay, ConvergenceDisplay, DictionaryDisplay

matplotlib.use("agg")
from matplotlib import pyplot

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


@pytest.mark.parametrize("n_terms", [1, 3])
def test_the_mosaic_holds_each_atom_scaled_to_one(n_terms):
    d = random_sum(n_terms, (4, 5), (6, 3))
    display = DictionaryDisplay(d).plot()
    canvas = display.mosaic()
    # One term has its factors along the edges: a gap, the bar of a factor and a wider gap.
    margin = 1 + 2 + 2 if n_terms == 1 else 1
    assert canvas.shape == (margin + 5 * 5, margin + 3 * 7)
    atoms = d.to_dense().T.reshape(5, 3, 4, 6)
    for i, j in np.ndindex(5, 3):
        row, column = margin + 5 * i, margin + 7 * j
        tile = canvas[row : row + 4, column : column + 6]
        assert np.allclose(tile, atoms[i, j] / np.abs(atoms[i, j]).max())
        assert np.isnan(canvas[row - 1, margin:]).all()
        assert np.isnan(canvas[margin:, column - 1]).all()
    assert np.nanmax(np.abs(canvas)) == 1
    terms = ", 3 terms" if n_terms == 3 else ""
    assert display.ax_.get_title() == f"4 × 6 patches, 5 × 3 atoms{terms}"
    if n_terms == 1:
        plain = DictionaryDisplay(KroneckerDictionary(d.coding_factors))
        np.testing.assert_array_equal(plain.mosaic(), canvas)


def test_factors_of_three_modes_stand_side_by_side_in_a_row_per_term():
    d = random_sum(2, (3, 4), (5, 2), (2, 3))
    canvas = DictionaryDisplay(d).mosaic()
    assert canvas.shape == (1 + 2 * 6, 1 + 5 + 3 + 4)
    for stack, left in zip(d.stacks, (1, 6, 9), strict=True):
        _, m, n = stack.shape
        shown = [canvas[top : top + m, left : left + n] for top in (1, 7)]
        # Terms share a scale, so that they can be compared.
        np.testing.assert_allclose(np.stack(shown), stack / np.abs(stack).max(axis=(0, 1)))
        assert np.isnan(canvas[:, left - 1]).all()


def test_a_sum_over_one_mode_is_drawn_as_its_matrix():
    d = random_sum(3, (4, 7))
    D = d.to_dense()
    canvas = DictionaryDisplay(d).mosaic()
    np.testing.assert_allclose(canvas[1:-1, 1:-1], D / np.abs(D).max(axis=0))


def test_a_dictionary_is_drawn_in_the_given_axes(tmp_path):
    figure, ax = pyplot.subplots()
    display = DictionaryDisplay(random_dictionary((4, 5), (6, 3))).plot(ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert pyplot.get_fignums() == [1]
    assert ax.get_title() == "4 × 6 patches, 5 × 3 atoms"
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_convergence_is_drawn_against_iterations_and_seconds():
    display = ConvergenceDisplay(HISTORY, name="first").plot()
    by_iteration, by_seconds = (ax.lines[0] for ax in display.axes_)
    assert by_iteration.get_xdata().tolist() == [0, 1, 2]
    assert by_seconds.get_xdata().tolist() == HISTORY["seconds"]
    assert by_iteration.get_ydata().tolist() == HISTORY["rmse"]
    again = ConvergenceDisplay(HISTORY, name="second").plot(axes=display.axes_)
    assert len(again.axes_[0].lines) == 2
    assert again.figure_ is display.figure_
    assert [text.get_text() for text in again.axes_[1].get_legend().get_texts()] == [
        "first",
        "second",
    ]


def test_a_fitted_estimator_is_drawn_by_its_history_and_its_dictionary():
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
    display = ConvergenceDisplay({**HISTORY, "iteration": [0, 50, 100]}).plot()
    assert display.axes_[0].lines[0].get_xdata().tolist() == [0, 50, 100]


def test_nonzeros_are_drawn_on_request():
    history = {**HISTORY, "mean_nonzeros": [6, 5, 4]}
    display = ConvergenceDisplay(history, quantity="mean_nonzeros").plot()
    assert display.axes_[0].lines[0].get_ydata().tolist() == [6, 5, 4]
    assert display.axes_[0].get_ylabel() == "nonzeros per sample"
    with pytest.raises(ValueError, match="quantity='seconds' cannot be drawn; pass one of rmse"):
        ConvergenceDisplay(history, quantity="seconds")


def test_one_iteration_is_visible():
    display = ConvergenceDisplay({"rmse": [3.0], "seconds": [1.0]}).plot()
    assert display.axes_[0].lines[0].get_marker() == "o"


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({"rmse": [1.0]}, "history has 1 values of 'rmse' and 0 of 'seconds'.*Pass the history_"),
        ({"rmse": [], "seconds": []}, "history has 0 values of 'rmse' and 0 of 'seconds'"),
    ],
)
def test_a_history_that_cannot_be_drawn_is_refused(history, message):
    with pytest.raises(ValueError, match=message):
        ConvergenceDisplay(history).plot()


def shown(ax):
    return ax.images[0].get_array()


@pytest.mark.parametrize("shape", [(12, 9), (12, 9, 3)])
def test_images_are_compared_on_one_scale(shape):
    before, after = np.full(shape, 51, np.uint8), np.full(shape, 51, np.uint8)
    after[:6] = 255
    after[6:8] = 0
    display = ComparisonDisplay(before, after, after, names=("a", "b")).plot()
    assert [ax.get_title() for ax in display.axes_[:2]] == ["a", "b"]
    assert display.axes_[2].get_title() == "difference, −204 to 204"
    assert display.axes_[3].get_title() == "reference"
    assert np.allclose(shown(display.axes_[0]), 0.2)
    assert np.allclose(shown(display.axes_[1]), after / 255)
    assert np.allclose(shown(display.axes_[2])[8:], 0.5)
    assert np.allclose(shown(display.axes_[2])[:6], 1)
    assert np.allclose(shown(display.axes_[2])[6:8], 0.5 - 51 / 408)


def test_the_error_is_drawn_on_request():
    image = np.zeros((4, 5), np.uint8)
    display = ComparisonDisplay(image + 9, image + 2, image, against="reference").plot()
    assert display.axes_[2].get_title() == "error, −2 to 2"
    assert np.allclose(shown(display.axes_[2]), 1)


def test_images_of_floats_are_shown_between_their_extremes():
    after = np.linspace(-2.0, 6.0, 20).reshape(4, 5)
    display = ComparisonDisplay(np.full((4, 5), np.nan), after).plot()
    assert np.allclose(shown(display.axes_[1]), (after + 2) / 8)
    assert np.allclose(shown(display.axes_[0]), 0)
    flat = ComparisonDisplay(np.zeros((4, 5)), np.zeros((4, 5))).plot()
    assert np.allclose(shown(flat.axes_[2]), 0.5)


@pytest.mark.parametrize(
    ("differences", "limit"),
    [([0.0], 1), ([-3.14], 3.14), ([0] * 999 + [7], 7)],
)
def test_the_scale_of_differences_covers_nearly_all(differences, limit):
    before = np.zeros((1, len(differences)))
    display = ComparisonDisplay(before, before + differences).plot()
    assert display.limit_ == pytest.approx(limit)


def test_images_are_compared_in_the_given_axes():
    image = np.zeros((4, 4), bool)
    figure, axes = pyplot.subplots(1, 3)
    display = ComparisonDisplay(image, ~image).plot(axes=axes)
    assert display.figure_ is figure
    assert pyplot.get_fignums() == [1]
    with pytest.raises(ValueError, match="axes has 3 entries; pass 4"):
        ComparisonDisplay(image, image, image).plot(axes=axes)


def test_images_that_cannot_be_compared_are_refused():
    image = np.zeros((4, 4))
    with pytest.raises(ValueError, match=r"after has shape \(4,\); pass images"):
        ComparisonDisplay(image[0], image[0])
    with pytest.raises(ValueError, match=r"before has shape \(3, 4\) and after \(4, 4\)"):
        ComparisonDisplay(image[1:], image)
    with pytest.raises(ValueError, match="reference has shape"):
        ComparisonDisplay(image, image, image[1:])
    for against in ("after", "reference"):
        with pytest.raises(ValueError, match=f"against='{against}' is not an image to subtract"):
            ComparisonDisplay(image, image, against=against)


def test_filters_are_drawn_by_their_factors_and_gaps_stay_empty():
    factors = [np.eye(5)[:, :3], -np.eye(5)[:, :2]]
    d = kl.convolutional.ConvolutionalDictionary(factors)
    display = kl.plots.FiltersDisplay(d).plot()
    canvas = display.mosaic()
    assert canvas.shape == (1 + 3 * 6, 1 + 2 * 6)
    # The filter in row 1 and column 0 is the product of these columns, scaled to one.
    np.testing.assert_array_equal(canvas[7:12, 1:6], np.outer(factors[0][:, 1], factors[1][:, 0]))
    assert np.isnan(canvas[::6]).all()
    assert display.ax_.get_title() == "6 kronecker filters of 5 × 5"
    dense = kl.convolutional.ConvolutionalDictionary([np.ones((5, 2, 4, 4))], "dense", True)
    canvas = kl.plots.FiltersDisplay(dense).mosaic()
    assert canvas.shape == (1 + 3 * 5, 1 + 2 * 5)
    assert np.isnan(canvas[-5:, -5:]).all()  # there is no sixth filter
    with pytest.raises(ValueError, match="not two-dimensional"):
        kl.plots.FiltersDisplay(kl.convolutional.ConvolutionalDictionary([np.eye(3)]))


def test_filters_with_three_channels_are_drawn_in_colour():
    factors = [np.eye(3)[:, 1:2], np.eye(4)[:, :2], -np.eye(5)[:, :2]]
    d = kl.convolutional.ConvolutionalDictionary(factors, has_channels=True)
    display = kl.plots.FiltersDisplay(d).plot()
    canvas = display.mosaic()
    assert canvas.shape == (1 + 2 * 5, 1 + 2 * 6, 3)
    assert canvas[1, 1].tolist() == [0, -1, 0]
    assert np.isnan(canvas[0]).all()
    picture = display.ax_.images[0].get_array()
    assert picture[1, 1].tolist() == [0.5, 0, 0.5]
    assert not np.isnan(picture).any()


def test_each_display_names_the_one_for_the_other_kind_of_dictionary():
    filters = kl.convolutional.ConvolutionalDictionary([np.eye(5)[:, :3], np.eye(5)[:, :2]])
    with pytest.raises(TypeError, match="a ConvolutionalDictionary with FiltersDisplay"):
        DictionaryDisplay(filters)
    with pytest.raises(TypeError, match=r"a KroneckerDictionary.* with DictionaryDisplay"):
        kl.plots.FiltersDisplay(random_dictionary((4, 5), (6, 3)))
