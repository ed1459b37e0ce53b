"""Convolutional dictionaries: coding, filters and learning."""

import numpy as np
import pytest
from scipy.signal import correlate, fftconvolve
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import reference
from kronlearn import load_dictionary, use_instruction_set
from kronlearn.convolutional import (
    ConvolutionalDictionary,
    SeparableConvolutionalLearning,
    convolutional_code,
    largest_penalty,
    load_filters,
    lowpass,
    reconstruct,
)
from kronlearn.convolutional import factors as parts
from kronlearn.convolutional.coded import CodedImage, CodedImages, MapCoder
from kronlearn.convolutional.padded import padded_images
from kronlearn.convolutional.updates import update_filters
from kronlearn.core.instruction_sets import instruction_sets
from kronlearn.io.model_files import read_file, write_file

STRUCTURES = ("kronecker", "separable", "dense")


def dictionary_of(structure, shape, rng, n=2, **options):
    """Random filters: the products of n short ones along each axis, or n ** axes free ones."""
    count = n ** len(shape)
    if structure == "dense":
        return ConvolutionalDictionary([rng.standard_normal((count, *shape))], structure, **options)
    columns = n if structure == "kronecker" else count
    factors = [rng.standard_normal((length, columns)) for length in shape]
    return ConvolutionalDictionary(factors, structure, **options)


def bordered(image, mask, shape):
    """Pad an image with unknown pixels; return it and its weights."""
    around = [(length - 1, length - 1) for length in shape]
    return np.pad(np.where(mask, 0, image), around), np.pad(~mask, around).astype(float)


def convolved(maps, filters):
    """``Σ_m d_m ∗ x_m``."""
    return fftconvolve(maps, filters, axes=range(1, maps.ndim)).sum(axis=0)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    ("shape", "size"), [((4,), (30,)), ((4, 3), (11, 9)), ((2, 3, 2), (4, 6, 5))]
)
def test_codes_reach_the_lowest_objective(structure, shape, size, rng):
    d = dictionary_of(structure, shape, rng)
    image, mask = 5 * rng.standard_normal(size), rng.random(size) < 0.2
    maps = convolutional_code(image, d, penalty=1.0, mask=mask, tol=1e-4)
    y, w = bordered(image, mask, shape)
    A = reference.convolution_matrix(d.filters, y.shape)
    y, w, x = y.ravel(), w.ravel(), maps.toarray().astype(float).ravel()
    best = reference.convolutional_code(y, w, A, 1.0, 2000)
    lowest = reference.convolutional_objective(y, w, A, best, 1.0)
    assert reference.convolutional_objective(y, w, A, x, 1.0) == pytest.approx(lowest, rel=1e-6)
    inside = tuple(slice(length - 1, 1 - length) for length in shape)
    bordered_shape = tuple(n + 2 * (p - 1) for n, p in zip(size, shape, strict=True))
    expected = (A @ x).reshape(bordered_shape)[inside]
    np.testing.assert_allclose(reconstruct(maps, d), expected, atol=1e-5)


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize("length", [1, 5, 16, 17, 70])
def test_codes_are_optimal_across_tiles_and_for_rows_of_any_length(name, length, rng):
    """Filters are shorter or longer than vectors and tiles; the image has several tiles."""
    d = dictionary_of("kronecker", (3, length), rng)
    image = rng.standard_normal((70, 150))
    with use_instruction_set(name):
        maps = convolutional_code(image, d, penalty=1.5, tol=1e-3)
    x = maps.toarray().astype(float)
    y, w = bordered(image, np.zeros(image.shape, bool), d.filter_shape)
    left = w * (y - convolved(x, d.filters))
    gradients = np.stack([correlate(left, f, "valid") for f in d.filters])
    assert maps.nnz > 20
    np.testing.assert_allclose(gradients[x != 0], 1.5 * np.sign(x[x != 0]), atol=2e-3)
    assert np.abs(gradients[x == 0]).max() <= 1.5 * 1.002


def test_results_have_the_same_bits_for_any_number_of_threads(rng):
    d = dictionary_of("kronecker", (5, 5), rng, n=3)
    image = rng.standard_normal((90, 150))
    mask = rng.random(image.shape) < 0.3
    one, two, five = (
        convolutional_code(image, d, penalty=1.0, mask=mask, n_jobs=n) for n in (1, 2, 5)
    )
    for other in two, five:
        np.testing.assert_array_equal(one.matrix.toarray(), other.matrix.toarray())
    learned = [
        SeparableConvolutionalLearning(
            (2, 2), (5, 5), penalty=0.5, max_iter=3, random_state=0, n_jobs=n
        ).fit(image)
        for n in (1, 3)
    ]
    assert learned[0].dictionary_ == learned[1].dictionary_


def test_all_coefficients_are_zero_from_the_largest_penalty_on(rng):
    d = dictionary_of("separable", (4, 4), rng)
    image = rng.standard_normal((20, 25))
    largest = largest_penalty(image, d)
    assert convolutional_code(image, d, penalty=1.001 * largest).nnz == 0
    assert convolutional_code(image, d, penalty=0.99 * largest, tol=1e-3).nnz > 0


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_codes_scale_with_the_units_of_the_image(scale, rng):
    d = dictionary_of("kronecker", (4, 4), rng)
    image = rng.standard_normal((16, 18))
    plain = convolutional_code(image, d, penalty=0.5).toarray().astype(float)
    scaled = convolutional_code(scale * image, d, penalty=0.5 * scale, tol=0.03)
    np.testing.assert_allclose(scaled.toarray() / scale, plain, atol=1e-2)


def test_channels_share_maps_and_may_be_along_any_axis(rng):
    d = dictionary_of("kronecker", (3, 4, 4), rng, has_channels=True)
    image = rng.standard_normal((15, 16, 3))
    maps = convolutional_code(image, d, penalty=0.3, channel_axis=-1)
    assert maps.map_shape == (1, 18, 19)
    again = reconstruct(maps, d, channel_axis=-1)
    assert again.shape == image.shape
    first = convolutional_code(np.moveaxis(image, -1, 0), d, penalty=0.3, channel_axis=0)
    np.testing.assert_array_equal(first.toarray(), maps.toarray())
    assert np.std(again - image) < np.std(image)


def test_images_of_a_list_are_coded_independently(rng):
    d = dictionary_of("dense", (3, 3), rng)
    images = [rng.standard_normal((10, 12)), rng.standard_normal((8, 9)).astype(np.float32)]
    together = convolutional_code(images, d, penalty=0.5, mask=[None, np.eye(8, 9, dtype=bool)])
    alone = convolutional_code(images[1], d, penalty=0.5, mask=np.eye(8, 9, dtype=bool))
    assert [maps.map_shape for maps in together] == [(12, 14), (10, 11)]
    np.testing.assert_array_equal(together[1].toarray(), alone.toarray())


def test_values_of_missing_pixels_do_not_matter(rng):
    d = dictionary_of("kronecker", (4, 4), rng)
    image, mask = rng.standard_normal((20, 20)), np.zeros((20, 20), bool)
    mask[5:8, 9:14] = True
    other = np.where(mask, np.nan, image)[:, ::1]
    first, second = (convolutional_code(y, d, penalty=0.4, mask=mask) for y in (image, other))
    np.testing.assert_array_equal(first.toarray(), second.toarray())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_derivatives_of_filters_equal_finite_differences(structure, rng):
    d = dictionary_of(structure, (3, 4), rng)
    factors = [factor.copy() for factor in d.factors]
    towards = [rng.standard_normal(factor.shape) for factor in factors]
    step = 1e-6
    ahead, behind = (
        parts.combined([f + s * t for f, t in zip(factors, towards, strict=True)], structure)
        for s in (step, -step)
    )
    forward = parts.pushed_forward(towards, factors, structure)
    np.testing.assert_allclose(forward, (ahead - behind) / (2 * step), atol=1e-8)
    weights = rng.standard_normal(d.filters.shape)
    back = parts.pulled_back(weights, factors, structure)
    expected = sum(np.sum(a * b) for a, b in zip(back, towards, strict=True))
    assert np.sum(weights * forward) == pytest.approx(expected)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_steps_of_the_filters_lower_the_error_of_fixed_codes(structure, rng):
    image = rng.standard_normal((40, 50))
    d = dictionary_of(structure, (5, 5), rng)
    (padded,) = padded_images(image, None, d.filter_shape, None, False)
    coded = CodedImage.uncoded(padded).coded(MapCoder(d, 1.0, 0.1, 1), 5)
    errors = [coded.squared_error()]
    for _ in range(3):
        d = update_filters(d, CodedImages([coded]), 1, 1)
        np.testing.assert_allclose(np.sum(d.filters**2, axis=(1, 2)), 1)
        coded = coded.with_filters(d, 1)
        errors.append(coded.squared_error())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.995 * errors[0]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_planted_filters_are_recovered(structure):
    rng = np.random.default_rng(1)
    planted = dictionary_of(structure, (5, 5), rng)
    maps = (rng.random((4, 76, 86)) < 0.006) * rng.standard_normal((4, 76, 86))
    image = convolved(maps, planted.filters)
    start = [f + 0.6 * rng.standard_normal(f.shape) / np.sqrt(5) for f in planted.factors]
    model = SeparableConvolutionalLearning(
        planted.n_filters if structure != "kronecker" else (2, 2),
        (5, 5),
        structure=structure,
        penalty=0.02,
        init=ConvolutionalDictionary(start, structure),
        max_iter=60,
        min_improvement=0,
    ).fit(image)
    found, wanted = (d.filters.reshape(4, -1) for d in (model.dictionary_, planted))
    assert np.abs(found @ wanted.T).max(axis=0).min() > 0.99
    assert model.history_["objective"][-1] < model.history_["objective"][0]


def test_a_callback_is_told_the_history_and_can_stop_learning(rng):
    image, told = rng.standard_normal((40, 40)), []
    start = dictionary_of("kronecker", (5, 5), rng)

    def callback(progress):
        told.append(progress)
        return progress.iteration == 3

    model = SeparableConvolutionalLearning(
        2, (5, 5), penalty=0.5, init=start, min_improvement=0, callback=callback
    )
    maps = model.fit_transform(image)
    assert (model.n_iter_, model.stop_reason_) == (3, "callback")
    assert model.dictionary_ == told[-1].dictionary != told[0].dictionary == start
    for name, values in model.history_.items():
        assert values == [getattr(progress, name) for progress in told]
    assert model.history_["objective"] == sorted(model.history_["objective"], reverse=True)
    left = image - model.inverse_transform(maps)
    objective = np.sum(left**2) / 2 + 0.5 * float(np.abs(maps.matrix).sum())
    assert objective <= model.history_["objective"][-1]
    assert -model.score(image) * image.size == pytest.approx(objective, rel=1e-5)


def test_learning_stops_when_an_iteration_improves_too_little(rng):
    model = SeparableConvolutionalLearning(
        2, (4, 4), penalty=0.5, min_improvement=0.01, random_state=0
    ).fit(rng.standard_normal((30, 30)))
    assert model.stop_reason_ == "converged"
    objective = np.asarray(model.history_["objective"])
    improvement = 1 - objective[1:] / objective[:-1]
    assert improvement[-1] < 0.01
    assert np.all(improvement[2:-1] >= 0.01)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_run_resumes_from_its_checkpoint_with_the_same_bits(structure, tmp_path, rng):
    images = [rng.standard_normal((15, 16, 2)), rng.standard_normal((20, 12, 2))]
    mask = [np.eye(15, 16, dtype=bool), None]
    options = {"structure": structure, "penalty": 0.5, "random_state": 0, "channel_axis": 2}

    def model(max_iter, **more):
        learner = SeparableConvolutionalLearning(2, (4, 4), max_iter=max_iter, **options, **more)
        return learner.set_params(min_improvement=0).fit(images, mask=mask)

    path, told = tmp_path / "run", []
    whole, _ = model(5), model(2, checkpoint=path)
    resumed = model(5, checkpoint=path, callback=lambda p: told.append(p.iteration))
    assert told == [3, 4, 5]
    assert resumed.dictionary_ == whole.dictionary_
    assert resumed.history_["objective"] == whole.history_["objective"]
    assert resumed.n_iter_ == 5
    mask[1] = np.eye(20, 12, dtype=bool)
    with pytest.raises(ValueError, match="another run: it was made from other images"):
        model(5, checkpoint=path)
    options["penalty"] = 0.6
    with pytest.raises(ValueError, match="another run: "):
        model(5, checkpoint=path)
    with pytest.raises(ValueError, match="is a convolutional checkpoint"):
        load_filters(path)


def test_a_run_stopped_in_the_pass_in_which_it_converged_is_not_resumed(tmp_path, rng):
    image = rng.standard_normal((15, 16))
    options = {"penalty": 0.5, "random_state": 0, "min_improvement": 0.1}
    model = SeparableConvolutionalLearning(2, (4, 4), **options)
    whole = model.fit(image)
    assert whole.stop_reason_ == "converged"
    stopped = SeparableConvolutionalLearning(
        2, (4, 4), **options, checkpoint=tmp_path / "run"
    ).set_params(callback=lambda progress: progress.iteration == whole.n_iter_)
    assert stopped.fit(image).stop_reason_ == "converged"
    resumed = stopped.set_params(callback=None).fit(image)
    assert resumed.history_["objective"] == whole.history_["objective"]
    assert resumed.dictionary_ == whole.dictionary_


@pytest.mark.parametrize(
    "damage", [{"factors.0": np.eye(3)}, {"passed.1": None}, {"history": None}]
)
def test_a_damaged_checkpoint_is_refused(damage, tmp_path):
    def fit():
        model = SeparableConvolutionalLearning(2, (4, 4), penalty=0.5, random_state=0)
        image = np.random.default_rng(0).standard_normal((20, 20))
        return model.set_params(max_iter=1, checkpoint=tmp_path / "run").fit(image)

    fit()
    tensors, header = read_file(tmp_path / "run", "convolutional checkpoint")
    kept = {name: array for name, array in (tensors | damage).items() if array is not None}
    write_file(tmp_path / "run", "convolutional checkpoint", kept, header)
    with pytest.raises(ValueError, match="run is damaged: "):
        fit()


def test_learning_can_start_from_learned_filters(rng):
    image = rng.standard_normal((30, 30))
    options = {"penalty": 0.5, "random_state": 0, "max_iter": 2}
    model = SeparableConvolutionalLearning(2, (5, 5), **options).fit(image)
    further = SeparableConvolutionalLearning(2, (5, 5), init=model.dictionary_, **options)
    assert further.fit(image).history_["objective"][-1] < model.history_["objective"][-1]


def test_partial_fit_learns_from_one_image_after_the_other(rng):
    planted = dictionary_of("kronecker", (5, 5), rng)
    model = SeparableConvolutionalLearning((2, 2), (5, 5), penalty=0.05, random_state=0)
    for _ in range(12):
        maps = (rng.random((4, 50, 50)) < 0.01) * rng.standard_normal((4, 50, 50))
        model.partial_fit(convolved(maps, planted.filters))
    per_pixel = model.history_["objective"]
    assert np.mean(per_pixel[-4:]) < 0.8 * np.mean(per_pixel[:4])


def test_partial_fit_with_a_small_image_moves_filters_little(rng):
    model = SeparableConvolutionalLearning(2, (5, 5), penalty=0.3, max_iter=5, random_state=0)
    before = model.fit(rng.standard_normal((80, 80))).filters_
    small = rng.standard_normal((10, 10))
    alone = clone(model).set_params(init=model.dictionary_).partial_fit(small)
    model.partial_fit(small)
    assert model.n_iter_ == 6
    moved, farther = (np.abs(each.filters_ - before).max() for each in (model, alone))
    assert 0 < moved < 0.05 * farther


def test_partial_fit_refuses_images_and_parameters_that_do_not_suit_the_filters(rng):
    image = rng.standard_normal((15, 16, 3))
    model = SeparableConvolutionalLearning(
        (2, 2, 2), (4, 4), penalty=0.5, channel_axis=-1, random_state=0
    )
    model.partial_fit(image).partial_fit(image)
    assert model.inverse_transform(model.transform(image)).shape == image.shape
    assert (model.n_iter_, model.stop_reason_) == (2, "partial_fit")
    assert [len(values) for values in model.history_.values()] == [2] * 4
    for other, options, text in (
        (np.concatenate([image, image], axis=2), {}, "6 channels, the filters 3"),
        (image[..., 0], {"channel_axis": None}, "pass channel_axis"),
        (image, {"channel_axis": 5}, "channel_axis=5 is not an axis"),
        (image, {"channel_axis": 2, "structure": "dense"}, "structure='dense' and .* kronecker"),
        (
            image,
            {"structure": "kronecker", "filter_shape": (5, 5)},
            r"but the filters are kronecker and have shape \(4, 4\)",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            model.set_params(**options).partial_fit(other)
    with pytest.raises(ValueError, match="mask has shape"):
        model.transform(image, mask=np.zeros((1, 16), bool))


def test_an_interrupt_keeps_completed_iterations(rng):
    def interrupt(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    model = SeparableConvolutionalLearning(2, (4, 4), penalty=0.5, callback=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(rng.standard_normal((20, 20)))
    assert (model.n_iter_, model.stop_reason_) == (2, "interrupted")
    assert [len(values) for values in model.history_.values()] == [3] * 4


def test_progress_increases_and_can_stop_coding(rng):
    d = dictionary_of("kronecker", (5, 5), rng)
    image = rng.standard_normal((100, 100))
    told = []
    convolutional_code(image, d, penalty=1.0, progress=told.append)
    assert told[0] == 0 < told[-1] < 1

    def stop(share):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        convolutional_code(image, d, penalty=1.0, progress=stop)


def test_codes_that_miss_their_tolerance_cause_a_warning(rng, monkeypatch):
    monkeypatch.setattr("kronlearn.convolutional.coded._MOST_ROUNDS", 1)
    d = dictionary_of("kronecker", (5, 5), rng)
    with pytest.warns(ConvergenceWarning, match=r"After 1 rounds, .* the penalty is very small"):
        convolutional_code(rng.standard_normal((90, 90)), d, penalty=0.5, tol=0.001)


def test_dictionaries_are_saved_and_compared(tmp_path, rng):
    for structure in STRUCTURES:
        d = dictionary_of(structure, (3, 4), rng, has_channels=True)
        d.save(tmp_path / "d.safetensors")
        assert load_filters(tmp_path / "d.safetensors") == d
        with pytest.raises(ValueError, match=r"read it with kl.convolutional.load_filters"):
            load_dictionary(tmp_path / "d.safetensors")
    assert d != dictionary_of("dense", (3, 4), rng, has_channels=True)


def test_lowpass_warns_of_colours_that_it_takes_for_a_spatial_axis(rng):
    image = rng.random((20, 20, 3))
    with pytest.warns(UserWarning, match="taken for a volume; pass channel_axis=-1") as caught:
        lowpass(image)
    assert caught[0].filename == __file__
    lowpass(image, channel_axis=-1)
    lowpass(np.moveaxis(image, -1, 0))


def test_lowpass_smooths_and_keeps_the_mean(rng):
    image = rng.standard_normal((30, 40, 3))
    smooth = lowpass(image, 5, channel_axis=-1)
    np.testing.assert_allclose(smooth.mean(axis=(0, 1)), image.mean(axis=(0, 1)))
    assert np.std(smooth) < 0.5 * np.std(image)
    np.testing.assert_allclose(lowpass(image, 0, channel_axis=-1), image)


GOOD = np.ones((12, 12))


@pytest.mark.parametrize(
    ("images", "options", "text"),
    [
        ([], {}, "There are no images"),
        (np.full((12, 12), np.nan), {}, "contains NaN or infinity; to treat"),
        ([GOOD, np.full((12, 12), np.inf)], {}, "Image 1 contains NaN"),
        (np.ones((3, 12)), {}, r"of shape \(3, 12\), is smaller than a filter of shape \(4, 4\)"),
        (np.ones((12, 12, 3)), {}, "need 2 axes"),
        (GOOD.astype(complex), {}, "pass real numbers"),
        (GOOD, {"penalty": 0}, r"penalty=0 is not in \(0, inf\)"),
        (GOOD, {"penalty": "much"}, "is not a number"),
        (GOOD, {"tol": 0}, "tol=0 is not in"),
        (GOOD, {"mask": np.ones((12, 12))}, "pass booleans"),
        (GOOD, {"mask": np.ones((12, 11), bool)}, "mask has shape"),
        (GOOD, {"mask": np.ones((12, 12), bool)}, "covers all"),
        ([GOOD, GOOD], {"mask": GOOD > 0}, "Pass a list of 2 masks"),
        (GOOD, {"channel_axis": 0}, "have no channels; leave it out"),
        (1e39 * GOOD, {}, "too large for single precision"),
        (np.ma.masked_array(GOOD, GOOD > 0), {}, "masked array; pass image.filled"),
        (np.ones((12, 12, 12)), {}, "pass several images as a list"),
    ],
)
def test_bad_input_is_refused(images, options, text, rng):
    d = dictionary_of("kronecker", (4, 4), rng)
    with pytest.raises((ValueError, TypeError), match=text):
        convolutional_code(images, d, **{"penalty": 1.0, **options})


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"penalty": -1}, r"penalty=-1 is not in \(0, inf\)"),
        ({"structure": "low-rank"}, "structure"),
        ({"filter_shape": (0, 5)}, "filter_shape"),
        ({"n_atoms": (2, 2, 2)}, "a number for each of the 2 axes"),
        ({"init": np.eye(3)}, "is not a ConvolutionalDictionary"),
        ({"max_iter": 0}, "max_iter=0 is too small"),
        ({"callback": 3}, "callback=3 is not a function"),
        (
            {"init": ConvolutionalDictionary([np.eye(5)[:, :2]] * 2), "structure": "dense"},
            "structure='dense' and .* but the filters are kronecker",
        ),
        (
            {"init": ConvolutionalDictionary([np.eye(4)[:, :2]] * 2)},
            r"filter_shape=\(5, 5\), but the filters",
        ),
    ],
)
def test_bad_parameters_are_refused(parameters, text):
    model = SeparableConvolutionalLearning(**{"n_atoms": 2, "filter_shape": (5, 5), **parameters})
    with pytest.raises((ValueError, TypeError), match=text):
        model.fit(GOOD)


@pytest.mark.parametrize("masks", [GOOD > 0, [GOOD > 0], [None, GOOD > 0]], ids=type)
@pytest.mark.parametrize("name", ["fit", "partial_fit", "fit_transform", "score"])
def test_masks_in_the_place_of_y_are_refused(name, masks):
    model = SeparableConvolutionalLearning(2, (5, 5), max_iter=1).fit(GOOD, np.ones(1))
    with pytest.raises(TypeError, match=r"y holds booleans.*mask="):
        getattr(model, name)([GOOD, GOOD], masks)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    ("shape", "channel_axis", "expected"),
    [((30,), None, (5,)), ((12, 12), None, (5, 5)), ((12, 13, 2), -1, (2, 5, 5))],
    ids=str,
)
def test_a_single_filter_shape_applies_to_every_spatial_axis(
    shape, channel_axis, expected, structure, rng
):
    images = [rng.standard_normal(shape)] * 2
    options = {"structure": structure, "channel_axis": channel_axis, "penalty": 0.1}
    model = SeparableConvolutionalLearning(2, 5, max_iter=1, **options).fit(images)
    assert model.dictionary_.filter_shape == expected
    model.set_params(init=model.dictionary_).fit(images)
    assert model.partial_fit(images).dictionary_.filter_shape == expected
    assert model.score(images) < 0


@pytest.mark.parametrize(
    ("images", "text"),
    [
        ([], "There are no images"),
        ([[[1], [2, 3]]], "has parts of different shapes"),
        (GOOD, "need images with 3 axes, one of which is channel_axis=2; the image has shape"),
    ],
)
def test_images_whose_channels_cannot_be_counted_are_refused(images, text):
    model = SeparableConvolutionalLearning((1, 2, 2), (5, 5), channel_axis=2)
    with pytest.raises(ValueError, match=text):
        model.fit(images)


def test_an_image_of_zeros_has_no_nonzeros_and_stops_learning(rng):
    d = dictionary_of("kronecker", (4, 4), rng)
    assert convolutional_code(np.zeros((9, 9)), d, penalty=1.0).nnz == 0
    model = SeparableConvolutionalLearning(2, (4, 4), max_iter=3, random_state=0)
    with pytest.warns(ConvergenceWarning, match="All coefficients are zero with penalty=0.05"):
        model.fit(np.zeros((9, 9)))
    assert (model.n_iter_, model.stop_reason_) == (0, "converged")


def test_bad_factors_are_refused(rng):
    for factors, structure, text in (
        ([np.eye(3)[0]], "kronecker", "Factors are matrices"),
        ([np.eye(3), np.ones((3, 2))], "separable", "same number of columns"),
        ([np.eye(3)], "round", "does not exist"),
        ([np.zeros((3, 2))], "kronecker", "finite and nonzero"),
        ([np.ones(3)], "dense", "one array"),
        ([np.eye(3), 1j * np.eye(3)], "kronecker", r"factors\[1\] has dtype complex128"),
    ):
        with pytest.raises(ValueError, match=text):
            ConvolutionalDictionary(factors, structure)
