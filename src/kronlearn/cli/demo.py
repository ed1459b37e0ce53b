"""``kronlearn demo``: learn from an image that comes with scikit-image, and denoise it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage import data

import kronlearn as kl
from kronlearn import options as opt
from kronlearn.cli.output import Output, facts_table, save_figure, times
from kronlearn.cli.record import thinned_history
from kronlearn.core.init import dct_factor
from kronlearn.experiments.data import noisy, psnr
from kronlearn.experiments.timing import median_seconds, timed
from kronlearn.io.model_files import save_dictionary
from kronlearn.plots import ComparisonDisplay, DictionaryDisplay
from kronlearn.plots.convergence import convergence_figure

__all__ = ["demo"]

_PATCH = (8, 8)
_SIGMA = 20
_SPARSITY = 6


def demo(
    output: opt.Folder = Path("kronlearn-demo"),
    quick: opt.Quick = False,
    n_jobs: opt.Jobs = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn from a sample image and denoise it, in a few seconds.

    The image comes with scikit-image. Prints how well learned and fixed dictionaries represent
    its patches, and writes dictionary.png, convergence.png, dictionary.safetensors and
    denoised.png.
    """
    shown = Output(as_json, quiet)
    output.mkdir(parents=True, exist_ok=True)
    image = data.camera().astype(np.float32)
    patches, _ = kl.images.extract_patches(image, _PATCH, 8 if quick else 4, remove_means=True)
    samples = np.asarray(patches)
    shown.say(
        f"{len(samples)} patches of {times(_PATCH)} pixels from scikit-image's camera image, means "
        f"removed; {_SPARSITY} atoms per patch."
    )
    models = {}
    for structure, n_atoms in {"orthonormal": 8, "general": 16}.items():
        model = kl.KroneckerDictionaryLearning(
            n_atoms=n_atoms,
            n_nonzero_coefs=_SPARSITY,
            structure=structure,
            max_iter=10 if quick else 50,
            random_state=seed,
            n_jobs=n_jobs,
        )
        with shown.learning(f"Learning, {structure}", model.max_iter) as callback:
            models[structure] = model.set_params(callback=callback).fit(samples)
    learned = models["general"].dictionary_
    dictionaries = {
        "DCT": _dct(8),
        "learned, orthonormal": models["orthonormal"].dictionary_,
        "overcomplete DCT": _dct(16),
        "learned, general": learned,
    }
    rows = [_row(name, d, samples, n_jobs) for name, d in dictionaries.items()]
    shown.say("RMSE in grey levels (0 to 255), change from the DCT, and time to code a patch:")
    shown.say(facts_table((row["dictionary"], _described(row, rows[0])) for row in rows))
    names = ("dictionary.png", "convergence.png", "dictionary.safetensors", "denoised.png")
    files = [output / name for name in names]
    save_figure(DictionaryDisplay(learned).plot().figure_, files[0], overwrite=True)
    histories = {name: model.history_ for name, model in models.items()}
    save_figure(convergence_figure(histories), files[1], overwrite=True)
    history = thinned_history(models["general"].history_)
    info = {"source": "kronlearn demo", "rmse": rows[-1]["rmse"], "history": history}
    save_dictionary(learned, files[2], info=info)
    name, part = ("a part of camera", image[:128, 192:320]) if quick else ("camera", image)
    denoised = _denoise(part, name, n_jobs, seed, files[3], shown)
    shown.say("Wrote " + ", ".join(map(str, files)))
    shown.finish({"samples": len(samples), "rows": rows, "denoised": denoised, "files": files})


def _dct(n: int) -> kl.KroneckerDictionary:
    """The separable DCT with n × n atoms."""
    return kl.KroneckerDictionary([dct_factor(size, n) for size in _PATCH])


def _row(
    name: str, dictionary: Any, samples: NDArray[np.float32], n_jobs: int | None
) -> dict[str, Any]:
    """The error and the time of coding the samples with a dictionary."""
    method = "threshold" if dictionary.is_orthonormal else "ols"
    options: dict[str, Any] = {"method": method, "n_jobs": n_jobs or 1}
    code = partial(kl.sparse_code, samples, dictionary, _SPARSITY, **options)
    residual = samples - dictionary.reconstruct(code())
    return {
        "dictionary": name,
        "n_atoms": list(dictionary.n_atoms),
        "method": method,
        "rmse": float(np.sqrt(np.mean(residual.astype(np.float64) ** 2))),
        "microseconds_per_patch": 1e6 * median_seconds(code, 3) / len(samples),
    }


def _described(row: dict[str, Any], first: dict[str, Any]) -> str:
    atoms, change = times(row["n_atoms"]), 100 * (row["rmse"] / first["rmse"] - 1)
    return (
        f"{atoms} atoms: {row['rmse']:.3f}, {change:+.1f} %, {row['microseconds_per_patch']:.2f} µs"
    )


def _denoise(
    image: NDArray[np.float32],
    name: str,
    n_jobs: int | None,
    seed: int | None,
    file: Path,
    shown: Output,
) -> dict[str, Any]:
    """Add noise to the image, denoise and draw it, and return PSNR and time."""
    degraded = noisy(image, _SIGMA, seed)
    with shown.stages("Denoising") as progress:
        options: dict[str, Any] = {"random_state": seed, "n_jobs": n_jobs, "progress": progress}
        seconds, result = timed(lambda: kl.images.denoise(degraded, **options))
    before, after = psnr(image, degraded), psnr(image, result)
    shown.say(
        f"Noise of {_SIGMA} grey levels added to {name} ({times(image.shape)} pixels) and removed "
        f"again: {before:.2f} dB → {after:.2f} dB, in {seconds:.2f} s."
    )
    names = (f"noisy, {before:.1f} dB", f"denoised, {after:.1f} dB")
    figure = ComparisonDisplay(degraded, result, image, names).plot().figure_
    save_figure(figure, file, overwrite=True, dpi=150)
    scores = {"psnr_before": before, "psnr_after": after, "seconds": seconds}
    return {"image": name, "shape": image.shape, **scores}
