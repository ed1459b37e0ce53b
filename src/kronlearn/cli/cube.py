"""``kronlearn cube``: hyperspectral cubes in files of many formats."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray

import kronlearn as kl
from kronlearn.cli import options as opt
from kronlearn.cli.checks import check_places, one_or_each, use_device
from kronlearn.cli.learn import learn_and_save
from kronlearn.cli.output import Output, counted, facts_table, times
from kronlearn.cli.report import Page, save_report
from kronlearn.hyperspectral.learning import default_atoms
from kronlearn.io.cubes import Cube, open_cube
from kronlearn.io.stored import StoredArrayError, open_array
from kronlearn.io.writers import target_files

__all__ = ["cube"]

cube = typer.Typer(
    help="Inspect, learn from and denoise hyperspectral cubes.", no_args_is_help=True
)

_FORMATS = "ENVI (.hdr), GeoTIFF, NetCDF, HDF5, Zarr, .mat, .npy, or a folder of images"

File = Annotated[Path, typer.Argument(metavar="FILE", help=f"A cube: {_FORMATS}.")]


@cube.command("info")
def info(
    path: File,
    noise: Annotated[
        bool, typer.Option("--noise", help="Also estimate the noise of every band.")
    ] = False,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Describe a cube file."""
    shown = Output(as_json, quiet)
    found = _open(path, band_axis, dataset, nodata, shown)
    record: dict[str, Any] = {
        "file": str(path),
        "dataset": found.stored.dataset,
        "shape": found.shape,
        "dtype": found.dtype.name,
        "band_axis": found.band_axis,
        "band_axis_reason": found.band_axis_reason,
        "chunks": found.chunks,
        # JSON has no NaN.
        "nodata": "nan" if found.nodata is not None and np.isnan(found.nodata) else found.nodata,
        "wavelengths": found.wavelengths,
        "wavelength_units": found.wavelength_units,
        "bad_bands": found.bad_bands,
        "crs": found.attributes.get("crs"),
        "bytes": math.prod(found.shape) * found.dtype.itemsize,
        "attributes": found.attributes,
    }
    facts = [
        ("file", path),
        ("dataset", found.stored.dataset),
        ("cube", _described(found)),
        ("band axis", f"{found.band_axis}, {found.band_axis_reason}"),
        ("wavelengths", _range(found.wavelengths, found.wavelength_units)),
        ("bad bands", _bad_bands(found)),
        ("coordinate system", record["crs"]),
        ("no data", found.nodata),
        ("chunks", found.chunks and times(found.chunks)),
        ("in memory", f"{record['bytes'] / 1e6:.3g} MB"),
    ]
    if noise:
        record["sigma"] = kl.hyperspectral.estimate_noise(found, n_jobs=n_jobs)
        facts.append(("noise level", _level(record["sigma"])))
    shown.say(facts_table(facts))
    shown.finish(record)


@cube.command("learn")
def learn(
    path: File,
    output: opt.Model = Path("model.safetensors"),
    patch: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_sizes,
            metavar="8x8",
            help="Shape of a patch in every band; a third size makes patches of several bands.",
        ),
    ] = "8x8",
    atoms: Annotated[
        Any,
        typer.Option(
            parser=opt.parse_sizes,
            metavar="16x16",
            help="Atoms per mode.",
            show_default="twice the patch; equal to the patch if orthonormal or with three modes",
        ),
    ] = None,
    sparsity: opt.Sparsity = None,
    tol: opt.Tol = None,
    remove_means: Annotated[
        bool, typer.Option("--remove-means", help="Subtract the mean of each patch.")
    ] = False,
    structure: opt.Structure = "general",
    method: opt.Method = "ols",
    max_iter: opt.MaxIter = 30,
    time_budget: opt.TimeBudget = None,
    checkpoint: opt.Checkpoint = None,
    seed: opt.Seed = None,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Learn a dictionary from all patches of a cube and save it.

    The dictionary serves sparse coding; cube denoise needs none. The cube is read in blocks of
    rows and need not fit into memory. Ctrl-C or SIGTERM ends learning and saves the best
    dictionary so far.
    """
    given = locals()
    shown = Output(as_json, quiet)
    use_device(device, shown)
    places = [("--output", output), ("--checkpoint", checkpoint)]
    check_places(places, [path], overwrite)
    found = _open(path, band_axis, dataset, nodata, shown)
    shape = (patch, patch) if isinstance(patch, int) else patch
    patches = kl.hyperspectral.CubePatches(found, shape, remove_means=remove_means)
    n_atoms = atoms or default_atoms(shape, structure)
    origin = {"input": str(path), "cube": found.shape, "remove_means": remove_means}
    learn_and_save(given, n_atoms, patches, origin, shown)


def _levels(text: str) -> Any:
    """One number, or one per band, from the command line or a file."""
    path = Path(text)
    if not path.is_file():
        return opt.parse_levels(text)
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False).astype(np.float64).reshape(-1)
        return np.loadtxt(path, delimiter=",", ndmin=1)
    except (ValueError, EOFError) as problem:
        raise typer.BadParameter(
            f"{path} cannot be read as one number per band: {problem}"
        ) from problem


@cube.command("denoise")
def denoise(
    path: Annotated[Path, typer.Argument(metavar="IN", help=f"A cube: {_FORMATS}.")],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The file to write; its extension determines the format."
        ),
    ],
    sigma: Annotated[
        Any,
        typer.Option(
            parser=_levels,
            metavar="S",
            help="Standard deviation of the noise, in the cube's own units: one number, one per "
            "band as in 9,8,12, or a file with one per band.",
            show_default="estimated for every band",
        ),
    ] = None,
    quality: Annotated[
        Literal["default", "fast"],
        typer.Option(
            metavar="NAME",
            help="default, or fast: a tenth of the time, up to 0.4 dB less accurate.",
        ),
    ] = "default",
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        typer.Option(
            metavar="NAME",
            help="Data type of the output: float32 or float64.",
            show_default="that of the input; integers are rounded",
        ),
    ] = None,
    artefacts: Annotated[
        bool,
        typer.Option(
            "--artefacts", help="Remove stripes and fill in impulses, dead pixels and dead lines."
        ),
    ] = False,
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Reference cube, to report PSNR, SSIM and spectral angle."
        ),
    ] = None,
    report: opt.Report = None,
    band_axis: opt.BandAxis = None,
    dataset: opt.Dataset = None,
    nodata: opt.NoData = None,
    n_jobs: opt.Jobs = None,
    device: opt.Device = "cpu",
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Remove the noise from a cube.

    Denoises the principal components of the spectra. It uses no learned dictionary: the models
    of cube learn serve sparse coding, not this command. The output has the metadata and, without
    --dtype, the data type of the input. Bands that the file marks as bad (bbl in ENVI
    headers) are left as they are. The cube is read in blocks of rows and need not fit into memory.
    """
    shown = Output(as_json, quiet)
    use_device(device, shown)
    found = _open(path, band_axis, dataset, nodata, shown)
    # An ENVI cube is two files.
    files = [output.parent / file.name for file in target_files(output, found.stored)]
    read = [*found.stored.files, path, *([clean] if clean else [])]
    check_places([("OUT", file) for file in files], read, overwrite, folders=True)
    check_places([("--report", report)], [*read, *files], overwrite)
    level = one_or_each(sigma, found.shape[2], "band")
    reference = None if clean is None else _reference(clean, path, found, band_axis)
    with shown.stages(path.name) as progress:
        result = kl.hyperspectral.denoise(
            found,
            level,
            out=output,
            dtype=dtype,
            quality=quality,
            artefacts=artefacts,
            n_jobs=n_jobs,
            device=device,
            progress=progress,
            full=True,
        )
    how = ", estimated" if sigma is None else ", as given"
    facts = [
        ("cube", _described(found)),
        ("noise level", _level(result.sigma) + how),
        ("components kept", result.n_planes),
        ("bad bands, left as they are", _bad_bands(found)),
        (("wrong or " if artefacts else "") + "missing values filled in", result.n_filled or None),
        ("pixels without data", result.n_skipped or None),
        ("time", f"{sum(result.seconds.values()):.3g} s"),
    ]
    scores = {}
    after = _written(output, found)
    if reference is not None:
        for name, some in {"before": found, "after": after}.items():
            score = kl.hyperspectral.compare(reference, some)
            facts.append((name, str(score)))
            means = {"psnr": score.mean_psnr, "ssim": score.mean_ssim, "angle": score.mean_angle}
            scores[name] = means
    if report is not None:
        told = [(name, str(value)) for name, value in facts if value is not None]
        save_report(_page(f"Denoised: {path.name}", found, after, told, result), report, overwrite)
        files.append(report)
    shown.say(path)
    shown.say(facts_table([*facts, ("saved as", ", ".join(map(str, files)))]))
    shown.finish(
        {
            "input": str(path),
            "output": str(output),
            "shape": found.shape,
            "dtype": dtype or found.dtype.name,
            "band_axis": found.band_axis,
            "bad_bands": found.bad_bands,
            "sigma": result.sigma,
            "sigma_estimated": sigma is None,
            "components": result.n_planes,
            "filled": result.n_filled,
            "skipped": result.n_skipped,
            "scores": scores,
            "seconds": result.seconds,
            "files": [str(file) for file in files],
        }
    )


def _open(
    path: Path, band_axis: int | None, dataset: str | None, nodata: float | None, output: Output
) -> Cube:
    """The cube in a file; if its band axis is a guess, that is said."""
    found = open_cube(path, band_axis, dataset, nodata)
    if found.band_axis_is_guess:
        output.say(
            f"{path}: the bands are taken to lie along axis {found.band_axis} "
            f"({found.band_axis_reason}); --band-axis sets another."
        )
    return found


def _written(output: Path, found: Cube) -> Cube:
    """The cube that was written: its format may have no names, and an order of its own."""
    try:
        stored = open_array(output, found.stored.dataset)
    except StoredArrayError:
        stored = open_array(output)
    written = open_cube(stored, nodata=found.nodata)
    if not written.band_axis_is_guess:
        return written
    return open_cube(stored, found.band_axis, nodata=found.nodata)


def _reference(clean: Path, path: Path, found: Cube, band_axis: int | None) -> Cube:
    # Its bands lie where the cube's do, unless its own file knows.
    stored = open_array(clean)
    reference = open_cube(stored, band_axis if stored.band_axis is None else None)
    if reference.shape != found.shape:
        raise ValueError(
            f"--clean {clean} is {_described(reference)}; it must match {path}, "
            f"{_described(found)}."
        )
    return reference


def _page(title: str, before: Cube, after: Cube, facts: list[tuple[str, str]], result: Any) -> Page:
    """What a report shows of a cube: the band with the median noise."""
    n_known = np.count_nonzero(np.isfinite(result.sigma))
    band = int(np.argsort(result.sigma)[n_known // 2])
    note = f"Band {band + 1} of {before.shape[2]} is shown, which has the median noise."
    return Page(title, _band(before, band), _band(after, band), facts, result.seconds, notes=[note])


def _band(cube: Cube, band: int) -> NDArray[Any]:
    """A band as an image (rows, columns), with NaN for missing values."""
    values, valid = cube.read_checked(slice(0, cube.shape[0]), bands=slice(band, band + 1))
    return values[..., 0] if valid is None else np.where(valid, values, np.nan)[..., 0]


def _described(found: Cube) -> str:
    sizes = zip(found.shape, ("row", "column", "band"), strict=True)
    return " × ".join(counted(size, noun) for size, noun in sizes) + f", {found.dtype.name}"


def _range(values: NDArray[Any] | None, units: str | None) -> str | None:
    if values is None or not len(values):
        return None
    return f"{np.min(values):g} to {np.max(values):g} {units or ''}".rstrip()


def _bad_bands(found: Cube) -> str | None:
    """How many bands are bad, and which: runs of numbers from one."""
    if found.bad_bands is None:
        return None
    edges = np.flatnonzero(np.diff(found.bad_bands, prepend=False, append=False)).reshape(-1, 2)
    runs = (f"{a + 1}" if b == a + 1 else f"{a + 1}–{b}" for a, b in edges.tolist())
    return f"{np.count_nonzero(found.bad_bands)} of {found.shape[2]}: {', '.join(runs)}"


def _level(sigma: NDArray[np.float64]) -> str:
    """Noise levels as people read them."""
    known = sigma[np.isfinite(sigma)]
    if not known.size:
        return "unknown"
    if known.min() == known.max():
        return f"σ = {known[0]:.4g}"
    return f"σ = {np.median(known):.4g} in the median band, {known.min():.4g} to {known.max():.4g}"
