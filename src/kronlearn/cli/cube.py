"""``kronlearn cube``: what is in a cube's file, learning from it, and denoising it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli.devices import use_device
from kronlearn.cli.options import parse_numbers
from kronlearn.cli.output import Output, facts_table, times
from kronlearn.cli.places import check_places
from kronlearn.cli.quality import plain_quality
from kronlearn.cli.record import fitted_entry, thinned_history
from kronlearn.hyperspectral import CubePatches, compare, estimate_noise
from kronlearn.hyperspectral import denoise as denoise_cube
from kronlearn.hyperspectral.learning import default_atoms
from kronlearn.io.cubes import Cube, open_cube
from kronlearn.io.model_files import save_dictionary

__all__ = ["Denoising", "Learning", "Opening", "denoise", "learn", "show"]


@dataclass(frozen=True)
class Opening:
    """A cube's file, and what was said about it."""

    path: Path
    band_axis: int | None
    dataset: str | None
    nodata: float | None

    def cube(self, output: Output) -> Cube:
        """The cube; if its bands were found by a guess, that is told."""
        cube = open_cube(self.path, self.band_axis, self.dataset, self.nodata)
        if cube.band_axis_is_guess:
            output.say(
                f"{self.path}: bands along axis {cube.band_axis} ({cube.band_axis_reason}); "
                "--band-axis tells it."
            )
        return cube


@dataclass(frozen=True)
class Learning:
    """What was asked of ``cube learn``."""

    opening: Opening
    output: Path
    patch: tuple[int, ...]
    #: None: by the patch and the structure.
    atoms: tuple[int, ...] | None
    sparsity: int | None
    tol: float | None
    remove_means: bool
    structure: str
    method: str
    max_iter: int
    time_budget: float | None
    checkpoint: Path | None
    seed: int | None
    n_jobs: int | None
    #: "cpu" or "cuda".
    device: str
    overwrite: bool


@dataclass(frozen=True)
class Denoising:
    """What was asked of ``cube denoise``."""

    opening: Opening
    output: Path
    #: Numbers, or a file with them; None: estimated.
    sigma: str | None
    clean: Path | None
    n_jobs: int | None
    #: "cpu" or "cuda".
    device: str
    overwrite: bool


def show(opening: Opening, noise: bool, n_jobs: int | None, output: Output) -> None:
    """Print what is in a cube's file."""
    cube = opening.cube(output)
    record: dict[str, Any] = {
        "file": str(opening.path),
        "dataset": cube.stored.dataset,
        "shape": cube.shape,
        "dtype": cube.dtype.name,
        "band_axis": cube.band_axis,
        "band_axis_reason": cube.band_axis_reason,
        "chunks": cube.chunks,
        "nodata": None if cube.nodata is None else str(cube.nodata),
        "wavelengths": cube.wavelengths,
        "bytes": int(np.prod(cube.shape)) * cube.dtype.itemsize,
        "attributes": cube.attributes,
    }
    facts = [
        ("file", opening.path),
        ("dataset", cube.stored.dataset),
        ("cube", _described(cube)),
        ("band axis", f"{cube.band_axis}, {cube.band_axis_reason}"),
        ("wavelengths", _range(cube.wavelengths)),
        ("no data", record["nodata"]),
        ("chunks", cube.chunks and times(cube.chunks)),
        ("in memory", f"{record['bytes'] / 1e6:.3g} MB"),
    ]
    if noise:
        with output.progress("Estimating noise", 1):
            found = estimate_noise(cube, n_jobs=n_jobs)
        record["sigma"] = _plain(found)
        facts.append(("noise level", _level(found)))
    output.say(facts_table(facts))
    output.finish(record)


def learn(request: Learning, output: Output) -> bool:
    """Learn, save and report; whether it came to an end by itself, not by an interrupt."""
    use_device(request.device, output)
    check_places(
        [("MODEL", request.output), ("--checkpoint", request.checkpoint)],
        [request.opening.path],
        request.overwrite,
        resumed=["--checkpoint"],
    )
    cube = request.opening.cube(output)
    patches = CubePatches(cube, request.patch, remove_means=request.remove_means)
    model = kl.KroneckerDictionaryLearning(
        request.atoms or default_atoms(request.patch, request.structure),
        n_nonzero_coefs=_sparsity(request),
        tol=request.tol,
        structure=request.structure,
        method=request.method,
        max_iter=request.max_iter,
        random_state=request.seed,
        n_jobs=request.n_jobs,
        device=request.device,
        time_budget=request.time_budget,
        checkpoint=request.checkpoint,
    )
    interrupted = False
    with output.learning("Learning", request.max_iter) as callback:
        model.set_params(callback=callback)
        try:
            model.fit(patches)
        except KeyboardInterrupt:
            if not hasattr(model, "dictionary_"):
                raise
            interrupted = True
    record = {
        "input": str(request.opening.path),
        "cube": cube.shape,
        "samples": len(patches),
        "remove_means": request.remove_means,
        "structure": request.structure,
        "method": "threshold" if request.structure == "orthonormal" else request.method,
        "n_nonzero_coefs": model.n_nonzero_coefs,
        "tol": request.tol,
        "seed": request.seed,
        "iterations": model.n_iter_,
        "stop_reason": "interrupted" if interrupted else model.stop_reason_,
        **fitted_entry(model),
        "seconds": float(model.history_["seconds"][-1]),
    }
    history = thinned_history(model.history_)
    info = {**record, "kronlearn_version": kl.__version__, "history": history}
    save_dictionary(model.dictionary_, request.output, info=info)
    output.say(
        facts_table(
            [
                ("cube", _described(cube)),
                ("patches", f"{len(patches)} of {times(patches.patch_shape)}"),
                ("atoms", times(model.dictionary_.n_atoms)),
                ("iterations", f"{model.n_iter_}, {record['stop_reason']}"),
                ("RMSE", f"{record['rmse']:.5g}"),
                ("time", f"{record['seconds']:.3g} s"),
                ("saved as", request.output),
            ]
        )
    )
    output.finish({**record, "history": model.history_, "output": str(request.output)})
    return not interrupted


def denoise(request: Denoising, output: Output) -> None:
    """Denoise a cube, write it and say how it went."""
    use_device(request.device, output)
    path, place = request.opening.path, request.output
    read = [path] if request.clean is None else [path, request.clean]
    _check_place(place, read, request.overwrite)
    cube = request.opening.cube(output)
    for written in cube.places(place):
        _check_place(written, cube.stored.files, request.overwrite)
    sigma = _sigma(request.sigma, cube)
    reference = None
    if request.clean is not None:
        # Its bands lie where the cube's do, unless its own file knows.
        reference = open_cube(request.clean, request.opening.band_axis)
        if reference.shape != cube.shape:
            raise ValueError(
                f"--clean {request.clean} is {_described(reference)}; it must be like "
                f"{path}, {_described(cube)}."
            )
    with output.stages(path.name) as progress:
        result = denoise_cube(
            cube,
            sigma,
            out=place,
            n_jobs=request.n_jobs,
            device=request.device,
            progress=progress,
            full=True,
        )
    facts = [
        ("cube", _described(cube)),
        ("noise level", _level(result.sigma) + (", estimated" if sigma is None else ", as given")),
        ("components above it", result.n_planes),
        ("missing values filled in", result.n_filled or None),
        ("pixels without data", result.n_skipped or None),
        ("time", f"{sum(result.seconds.values()):.3g} s"),
    ]
    scores: dict[str, dict[str, float | None]] = {}
    if reference is not None:
        after = open_cube(place, cube.band_axis, request.opening.dataset, cube.nodata)
        for name, some in {"before": cube, "after": after}.items():
            found = compare(reference, some)
            facts.append((name, str(found)))
            scores[name] = plain_quality(
                {"psnr": found.mean_psnr, "ssim": found.mean_ssim, "angle": found.mean_angle}
            )
    output.say(path)
    output.say(facts_table([*facts, ("saved as", place)]))
    output.finish(
        {
            "input": str(path),
            "output": str(place),
            "shape": cube.shape,
            "dtype": cube.dtype.name,
            "band_axis": cube.band_axis,
            "sigma": _plain(result.sigma),
            "sigma_estimated": sigma is None,
            "components": result.n_planes,
            "filled": result.n_filled,
            "skipped": result.n_skipped,
            "quality": scores,
            "seconds": result.seconds,
        }
    )


def _check_place(place: Path, read: list[Path], overwrite: bool) -> None:
    """Refuse to write where it cannot be or must not be; a cube's file may be a folder."""
    if not place.is_dir():
        check_places([("OUT", place)], read, overwrite)
    elif place.resolve() in {path.resolve() for path in read}:
        raise ValueError(f"OUT {place} would overwrite the input; give another name.")
    elif not overwrite:
        raise ValueError(
            f"OUT {place} exists already; give another name, or --overwrite to replace it."
        )


def _sparsity(request: Learning) -> int | None:
    return 6 if request.sparsity is None and request.tol is None else request.sparsity


def _sigma(text: str | None, cube: Cube) -> float | NDArray[np.float64] | None:
    """One number, or one per band, from the command line or a file."""
    if text is None:
        return None
    path = Path(text)
    if not path.is_file():
        if path.suffix.lower() in (".npy", ".txt", ".csv"):
            raise ValueError(f"--sigma {path} does not exist.")
        numbers = np.array(parse_numbers("--sigma", [text]))
        where = "--sigma"
    else:
        where = f"--sigma {path}"
        try:
            if path.suffix == ".npy":
                numbers = np.load(path, allow_pickle=False)
            else:
                numbers = np.loadtxt(path, delimiter=",", ndmin=1)
            numbers = np.asarray(numbers, np.float64).reshape(-1)
        except (ValueError, EOFError) as problem:
            raise ValueError(
                f"{where} cannot be read as one number per band: {problem}"
            ) from problem
    if len(numbers) not in (1, cube.shape[2]):
        raise ValueError(
            f"{where} has {len(numbers)} numbers for {cube.shape[2]} bands; give one, or one per "
            "band."
        )
    return float(numbers[0]) if len(numbers) == 1 else numbers


def _described(cube: Cube) -> str:
    rows, columns, bands = cube.shape
    return f"{rows} rows × {columns} columns × {bands} bands, {cube.dtype.name}"


def _range(values: NDArray[Any] | None) -> str | None:
    if values is None or not len(values):
        return None
    return f"{np.min(values):g} to {np.max(values):g}"


def _level(sigma: NDArray[np.float64]) -> str:
    """Noise levels as people read them."""
    known = sigma[np.isfinite(sigma)]
    if not known.size:
        return "unknown"
    if known.min() == known.max():
        return f"σ = {known[0]:.4g}"
    return f"σ = {np.median(known):.4g} in the median band, {known.min():.4g} to {known.max():.4g}"


def _plain(sigma: NDArray[np.float64]) -> list[float | None]:
    """For JSON, which knows no NaN."""
    return [float(value) if np.isfinite(value) else None for value in sigma]
