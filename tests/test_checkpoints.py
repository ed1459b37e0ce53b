"""Checkpoints: a resumed run ends with the same bits; those of other runs are refused."""

import numpy as np
import pytest

import kronlearn as kl
import reference
from kronlearn.io.model_files import ModelFileError, read_file, write_file
from learning_problems import assert_same_model, learner, planted, smooth_samples


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("structure", ["general", "orthonormal"])
def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_bits(
    rng, tmp_path, structure, sums, dtype
):
    Y = rng.standard_normal((400, 5, 5)).cumsum(axis=1).astype(dtype)
    start = reference.orthonormal_factors(rng, (5, 5))
    whole = learner(start, max_iter=9, structure=structure).fit(Y)
    path = tmp_path / "run.safetensors"
    options = {"structure": structure, "checkpoint": path, "checkpoint_every": 2}
    stop = learner(start, max_iter=9, callback=lambda s: s.iteration == 5, **options).fit(Y)
    assert (stop.n_iter_, stop.stop_reason_) == (5, "callback")
    assert path.stat().st_size < 8192
    resumed = learner(start, max_iter=9, **options).fit(Y)
    assert_same_model(resumed, whole)


def test_a_resumed_run_does_only_the_missing_iterations(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run.safetensors"
    learner(start, max_iter=4, checkpoint=path, checkpoint_every=10).fit(Y)
    seen = []
    options = {"checkpoint": path, "callback": lambda progress: seen.append(progress.iteration)}
    model = learner(start, max_iter=6, **options).fit(Y)
    assert seen == [5, 6]
    assert_same_model(model, learner(start, max_iter=6).fit(Y))
    assert np.all(np.diff(model.history_["seconds"]) > 0)
    again = learner(start, max_iter=6, **options).fit(Y)
    assert seen == [5, 6]
    assert_same_model(again, model)


def test_a_converged_run_is_not_resumed(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"max_iter": 500, "min_improvement": 1e-2, "checkpoint": tmp_path / "run"}
    first = learner(start, **options).fit(Y)
    again = learner(start, **options).fit(Y)
    assert first.stop_reason_ == again.stop_reason_ == "converged"
    assert_same_model(again, first)


def test_a_run_stopped_in_the_pass_in_which_it_converged_is_not_resumed(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))
    options = {"max_iter": 500, "min_improvement": 1e-2}
    whole = learner(start, **options).fit(Y)
    assert whole.stop_reason_ == "converged"
    options["checkpoint"] = tmp_path / "run"
    stop = learner(start, callback=lambda s: s.iteration == whole.n_iter_, **options).fit(Y)
    assert stop.stop_reason_ == "converged"
    assert_same_model(learner(start, **options).fit(Y), whole)


@pytest.mark.parametrize("name", ["factors.0", "best.1"])
def test_a_checkpoint_with_invalid_factors_is_refused(rng, tmp_path, name):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, max_iter=1, checkpoint=path).fit(Y)
    tensors, header = read_file(path, "checkpoint")
    factors = tensors[name]
    for wrong in (factors[..., 1:], factors[:, 1:], factors.astype(np.float32), factors * np.nan):
        write_file(path, "checkpoint", tensors | {name: wrong}, header)
        with pytest.raises(ModelFileError, match="is damaged"):
            learner(start, max_iter=2, checkpoint=path).fit(Y)


def test_an_interrupted_run_resumes_and_ends_with_the_same_bits(rng, tmp_path):
    Y, start = planted(rng, (5, 4), (7, 6))

    def interrupt(progress):
        if progress.iteration == 3:
            raise KeyboardInterrupt

    options = {"max_iter": 8, "checkpoint": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        learner(start, callback=interrupt, **options).fit(Y)
    assert len(read_file(tmp_path / "run", "checkpoint")[0]["history"]) == 3
    assert_same_model(learner(start, **options).fit(Y), learner(start, max_iter=8).fit(Y))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"n_nonzero_coefs": 2}, "n_nonzero_coefs is 3, here it is 2"),
        ({"method": "omp"}, "method"),
        ({"n_terms": 2}, "n_terms is 1, here it is 2"),
        ({"random_state": 1}, "random_state is 0"),
        ({"init": "start"}, "init"),
        ({"samples": "shifted"}, "samples"),
        ({"samples": "reversed"}, "samples"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run_is_refused_with_the_parameter_that_differs(
    rng, tmp_path, change, name
):
    Y, start = planted(rng, (5, 4), (7, 6))
    path = tmp_path / "run"
    learner(start, checkpoint=path).fit(Y)
    other = {"shifted": Y + 0.5, "reversed": Y[::-1], None: Y}[change.pop("samples", None)]
    if "init" in change:
        change["init"] = reference.random_factors(rng, (5, 4), (7, 6))
    model = learner(start, checkpoint=path).set_params(**change)
    with pytest.raises(ValueError, match=rf"another run.*{name}.*Delete"):
        model.fit(other)


@pytest.mark.parametrize("stopped_at", [1, 2, 3, 7])
def test_a_run_resumed_before_or_after_the_terms_join_ends_with_the_same_bits(
    rng, tmp_path, stopped_at
):
    Y = smooth_samples(rng)

    def model(**options):
        return kl.KroneckerDictionaryLearning(
            (7, 6), n_nonzero_coefs=4, n_terms=2, max_iter=10, random_state=0, **options
        )

    whole = model().fit(Y)
    options = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    stopped = model(callback=lambda progress: progress.iteration == stopped_at, **options)
    assert stopped.fit(Y).n_iter_ == stopped_at
    assert_same_model(model(**options).fit(Y), whole)
