"""``kronlearn demo``: learn from an image that comes with scikit-image, and show what comes out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from skimage.metrics import peak_signal_noise_ratio

import kronlearn as kl
from kronlearn.cli import drawing, patches
from kronlearn.cli.output import Output, times
from kronlearn.cli.record import thinned_history
from kronlearn.core.init import dct_factor
from kronlearn.io.model_files import save_dictionary

__all__ = ["run"]

PATCH = (8, 8)
SIGMA = 20
SPARSITY = 6


def run(folder: Path, quick: bool, n_jobs: int | None, seed: int, output: Output) -> None:
    """Learn two dictionaries, compare them with the DCT; denoise; write pictures and the model."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {folder} is a file; give the name of a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    image = patches.included_images(["camera"])[0]
    stride = (8, 8) if quick else (4, 4)
    samples = patches.without_means(patches.grid_patches(image, PATCH, stride))
    output.say(
        f"{len(samples)} patches of {times(PATCH)} pixels of scikit-image's camera, means removed; "
        f"{SPARSITY} atoms each."
    )
    max_iter = 10 if quick else 50
    models = {
        "orthonormal": _learn("orthonormal", (8, 8), max_iter, samples, n_jobs, seed, output),
        "general": _learn("general", (16, 16), max_iter, samples, n_jobs, seed, output),
    }
    rows = [
        _row("DCT", _cosines(8), samples, n_jobs),
        _row("learned, orthonormal", models["orthonormal"].dictionary_, samples, n_jobs),
        _row("overcomplete DCT", _cosines(16), samples, n_jobs),
        _row("learned, general", models["general"].dictionary_, samples, n_jobs),
    ]
    output.say(_table(rows))
    learned = models["general"].dictionary_
    files = [
        folder / name
        for name in ("dictionary.png", "convergence.png", "dictionary.safetensors", "denoised.png")
    ]
    drawing.save_dictionary_picture(learned, files[0], overwrite=True)
    histories: dict[str | None, Any] = {name: m.history_ for name, m in models.items()}
    drawing.save_convergence(histories, files[1], overwrite=True)
    info = {
        "source": "kronlearn demo",
        "rmse": rows[-1]["rmse"],
        "history": thinned_history(models["general"].history_),
    }
    save_dictionary(learned, files[2], info=info)
    denoised = _denoise(image[:128, 192:320] if quick else image, n_jobs, seed, files[3], output)
    output.say("Wrote " + ", ".join(map(str, files)))
    output.finish(
        {
            "samples": len(samples),
            "rows": rows,
            "denoised": denoised,
            "files": [str(file) for file in files],
        }
    )


def _cosines(n: int) -> Any:
    """The separable DCT with n × n atoms."""
    return kl.KroneckerDictionary([dct_factor(size, n) for size in PATCH])


def _learn(
    structure: str,
    n_atoms: tuple[int, int],
    max_iter: int,
    samples: NDArray[np.float32],
    n_jobs: int | None,
    seed: int,
    output: Output,
) -> Any:
    with output.learning(f"Learning, {structure}", max_iter) as callback:
        return kl.KroneckerDictionaryLearning(
            n_atoms=n_atoms,
            n_nonzero_coefs=SPARSITY,
            structure=structure,
            max_iter=max_iter,
            random_state=seed,
            n_jobs=n_jobs,
            callback=callback,
        ).fit(samples)


def _denoise(
    image: NDArray[np.float32], n_jobs: int | None, seed: int, file: Path, output: Output
) -> dict[str, float]:
    """Add noise to the image, take it out again, draw both; what it did and how long it took."""
    noise = np.random.default_rng(seed).standard_normal(image.shape, np.float32)
    noisy = image + np.float32(SIGMA) * noise
    start = time.perf_counter()
    with output.stages("Denoising") as progress:
        result = kl.images.denoise(noisy, random_state=seed, n_jobs=n_jobs, progress=progress)
    seconds = time.perf_counter() - start
    before, after = (
        float(peak_signal_noise_ratio(image, picture, data_range=255))
        for picture in (noisy, result)
    )
    output.say(
        f"Noise of {SIGMA} gray levels added to camera and taken out again: {before:.2f} dB → "
        f"{after:.2f} dB, in {seconds:.2f} s."
    )
    names = (f"noisy, {before:.1f} dB", f"denoised, {after:.1f} dB")
    drawing.save_comparison(noisy, result, image, names, "before", file, overwrite=True)
    return {"psnr_before": before, "psnr_after": after, "seconds": seconds}


def _row(
    name: str, dictionary: Any, samples: NDArray[np.float32], n_jobs: int | None
) -> dict[str, Any]:
    """The error and the time of coding the samples anew with a dictionary."""
    method = "threshold" if dictionary.is_orthonormal else "ols"
    start = time.perf_counter()
    codes = kl.sparse_code(
        samples, dictionary, SPARSITY, method=method, n_jobs=1 if n_jobs is None else n_jobs
    )
    seconds = time.perf_counter() - start
    residual = samples - dictionary.reconstruct(codes)
    rmse = float(np.sqrt(np.mean(residual.astype(np.float64) ** 2)))
    return {
        "dictionary": name,
        "n_atoms": list(dictionary.n_atoms),
        "method": method,
        "rmse": rmse,
        "microseconds_per_patch": 1e6 * seconds / len(samples),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="RMSE in gray levels (0 to 255)", title_justify="left")
    table.add_column("dictionary")
    for heading in ("atoms", "RMSE", "against DCT", "coding, µs per patch"):
        table.add_column(heading, justify="right")
    for row in rows:
        change = row["rmse"] / rows[0]["rmse"] - 1
        table.add_row(
            row["dictionary"],
            times(row["n_atoms"]),
            f"{row['rmse']:.3f}",
            f"{100 * change:+.1f} %" if row is not rows[0] else "",
            f"{row['microseconds_per_patch']:.2f}",
        )
    return table
