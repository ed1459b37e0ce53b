"""The commands for cubes: what they read, write, refuse and print."""

import json
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import spectral.io.envi

from command_line import fails, record_of, run, succeeds
from kronlearn import load_dictionary
from kronlearn.cli.output import Output
from kronlearn.hyperspectral import CubePatches, denoise, learn
from kronlearn.io.cubes import open_cube

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def cube(rng):
    """Smooth mixtures of three spectra with noise, (40, 30, 12), in cube.npy and cube.hdr."""
    y, x = np.mgrid[:40, :30] / 10
    shares = np.stack([np.sin(x), np.cos(y), x * y], axis=2)
    values = 2000 + 300 * shares @ rng.random((3, 12)) + rng.normal(0, 20, (40, 30, 12))
    values = np.rint(values).astype(np.int16)
    np.save("cube.npy", values)
    with open_cube(values, band_axis=2).create("cube.hdr") as writer:
        writer.write(slice(0, 40), values)
    return values


def test_info_prints_shape_type_and_band_axis(cube):
    told = succeeds("cube", "info", "cube.npy").stdout
    assert "40 rows × 30 columns × 12 bands, int16" in told
    assert "guessed" in told
    assert "--band-axis" in told
    assert "--band-axis" not in succeeds("cube", "info", "cube.npy", "--band-axis", 2).stdout
    record = record_of("cube", "info", "cube.hdr", "--noise")
    assert record["shape"] == [40, 30, 12]
    assert record["dtype"] == "int16"
    assert len(record["sigma"]) == 12
    assert np.abs(np.median(record["sigma"]) / 20 - 1) < 0.15


def test_info_prints_scaling_that_is_not_applied(cube):
    assert "scaling" not in succeeds("cube", "info", "cube.hdr").stdout
    metadata = {"data gain values": [0.5] * 11 + [2], "data offset values": [3] * 12}
    metadata["reflectance scale factor"] = 10000
    spectral.io.envi.save_image("scaled.hdr", cube, metadata=metadata)
    expected = "factor 0.5 to 2, offset 3, reflectance scale factor 10000"
    assert expected in succeeds("cube", "info", "scaled.hdr").stdout


def test_info_prints_numbers_in_json(cube):
    np.save("float.npy", cube[:, :, :1].astype(np.float32))
    for nodata, expected in {"-9999": -9999, "nan": "nan"}.items():
        arguments = ["cube", "info", "float.npy", "--band-axis", 2, "--nodata", nodata]
        assert record_of(*arguments)["nodata"] == expected
    assert "× 1 band, float32" in succeeds(*arguments).stdout
    with open("cube.hdr", "a", encoding="utf-8") as header:
        bands = ", ".join(str(400 + 10 * band) for band in range(12))
        header.write(f"wavelength units = Nanometers\nwavelength = {{{bands}}}\n")
        header.write("bbl = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1}\n")
    told = succeeds("cube", "info", "cube.hdr").stdout
    assert "400 to 510 Nanometers" in told
    assert "3 of 12: 1–2, 11" in told
    record = record_of("cube", "info", "cube.hdr")
    assert (record["wavelength_units"], record["crs"]) == ("Nanometers", None)
    assert np.flatnonzero(record["bad_bands"]).tolist() == [0, 1, 10]
    arguments = ["cube", "denoise", "cube.hdr", "out.hdr", "--dtype", "float32", "--sigma", 20]
    assert "3 of 12: 1–2, 11" in succeeds(*arguments).stdout
    result = open_cube("out.hdr").read(slice(0, 40))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result[..., [0, 1, 10]], cube[..., [0, 1, 10]])
    assert "--nodata: the value must be a valid number" in fails(
        "cube", "info", "cube.hdr", "--nodata", "abc"
    )


@pytest.mark.parametrize(("name", "files"), [("clean.hdr", 2), ("clean.zarr", 1)])
def test_denoising_a_file_is_denoising_its_array(cube, name, files):
    record = record_of("cube", "denoise", "cube.hdr", name)
    assert record["sigma_estimated"]
    assert len(record["files"]) == files
    assert all(Path(file).exists() for file in record["files"])
    result = open_cube(name)
    assert result.dtype == np.int16
    np.testing.assert_array_equal(result.read(slice(0, 40)), denoise(cube, band_axis=2))
    assert "already exists" in fails("cube", "denoise", "cube.hdr", name)
    succeeds("cube", "denoise", "cube.hdr", name, "--overwrite", "--sigma", 20)


def test_a_folder_that_is_read_is_not_written(cube):
    succeeds("cube", "denoise", "cube.hdr", "cube.zarr", "-q")
    problem = fails("cube", "denoise", "cube.zarr", "cube.zarr", "--overwrite")
    assert "would overwrite the input" in problem


def test_artefacts_are_repaired_on_request(cube):
    spoilt = cube.copy()
    spoilt[::7, ::5, 3] = 20_000
    np.save("spoilt.npy", spoilt)
    arguments = ("cube", "denoise", "spoilt.npy", "o.npy", "--band-axis", 2, "--artefacts")
    record = record_of(*arguments)
    n_spoilt = np.count_nonzero(spoilt != cube)
    assert n_spoilt <= record["filled"] < n_spoilt + 10
    np.testing.assert_array_equal(np.load("o.npy"), denoise(spoilt, band_axis=2, artefacts=True))
    assert "wrong or missing values filled in" in succeeds(*arguments, "--overwrite").stdout


def test_noise_is_given_as_a_number_a_list_or_a_file(cube):
    sigma = np.linspace(15, 25, 12)
    np.save("sigma.npy", sigma)
    np.savetxt("sigma.txt", sigma)
    given = ",".join(map(str, sigma))
    expected = denoise(cube, sigma, band_axis=2)
    for k, text in enumerate(["sigma.npy", "sigma.txt", given]):
        out = f"{k}.npy"
        succeeds("cube", "denoise", "cube.npy", out, "--sigma", text, "--band-axis", 2, "-q")
        np.testing.assert_array_equal(np.load(out), expected)
    record = record_of("cube", "denoise", "cube.hdr", "o.npy", "--sigma", 20)
    assert record["sigma"] == [20.0] * 12
    assert not record["sigma_estimated"]


def test_a_reference_cube_gives_scores(cube, rng):
    noisy = cube + rng.normal(0, 100, cube.shape).astype(np.float32)
    np.save("noisy.npy", noisy.astype(np.float32))
    with h5py.File("noisy.h5", "w") as file:
        file["noisy"], file["other"] = noisy, noisy[1:]
    # Formats without dataset names, and with another order of axes.
    for source, output, clean in (
        ("noisy.npy", "out.npy", "cube.npy"),
        ("noisy.npy", "out.tif", "cube.hdr"),
        ("noisy.h5", "out.h5", "cube.npy"),
        ("noisy.h5", "named.npy", "cube.npy"),
    ):
        name = ("--dataset", "noisy") if source == "noisy.h5" else ()
        arguments = ("cube", "denoise", source, output, "--clean", clean, *name)
        record = record_of(*arguments, "--band-axis", 2)
        before, after = record["scores"]["before"], record["scores"]["after"]
        assert after["psnr"] > before["psnr"] + 5
        assert after["angle"] < 0.5 * before["angle"]
    np.save("other.npy", cube[:20])
    arguments = ("cube", "denoise", "noisy.npy", "new.npy", "--clean", "other.npy")
    assert "must match noisy.npy" in fails(*arguments, "--band-axis", 2)


@pytest.mark.filterwarnings("ignore:.*out.npy")
def test_scores_leave_bad_bands_out(cube, rng):
    noisy = cube + rng.normal(0, 100, cube.shape).astype(np.float32)
    noisy[..., 4] = rng.normal(0, 1e6, cube.shape[:2])
    metadata = {"bbl": [int(band != 4) for band in range(12)]}
    spectral.io.envi.save_image("noisy.hdr", noisy, metadata=metadata, dtype="f4")
    for output in ("out.hdr", "out.npy"):
        arguments = ("cube", "denoise", "noisy.hdr", output, "--clean", "cube.npy")
        record = record_of(*arguments, "--band-axis", 2)
        assert record["scores"]["before"]["angle"] < 10
        assert record["scores"]["after"]["angle"] < 0.5 * record["scores"]["before"]["angle"]


@pytest.mark.parametrize("name", ["out.tif", "out.npy"])
def test_a_report_shows_a_band_before_and_after(cube, name):
    holed = cube.astype(np.float32)
    holed[:3, :3] = np.nan
    np.save("holed.npy", holed)
    arguments = ("cube", "denoise", "holed.npy", name, "--band-axis", 2, "--nodata", "nan")
    report = ("--report", "page.html")
    record = record_of(*arguments, "--clean", "cube.npy", *report)
    assert record["files"] == [name, "page.html"]
    assert {"before", "after"} <= record["scores"].keys()
    page = Path("page.html").read_text("utf-8")
    median = int(np.argsort(record["sigma"])[6]) + 1
    assert f"Band {median} of 12 is shown" in page
    for words in ("Denoised: holed.npy", "noise level", "pixels without data", "Difference"):
        assert words in page
    assert "page.html already exists" in fails("cube", "denoise", "cube.npy", "o.npy", *report)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["cube.npy", "cube.npy"], "would overwrite the input"),
        (["nothing.hdr", "out.hdr"], "nothing.hdr"),
        (["cube.npy", "nowhere/out.npy"], "the folder nowhere does not exist"),
        (["cube.npy", "out.npy", "--sigma", "loud"], "--sigma: 'loud' is not a noise level"),
        (["cube.npy", "out.npy", "--sigma", "no.txt"], "0 or greater, or an existing file."),
        (["cube.npy", "out.npy", "--sigma", "1,2"], "has 2 numbers for 12 bands"),
        (["cube.npy", "out.npy", "--sigma", "words.txt"], "words.txt cannot be read as one number"),
        (["cube.npy", "out.npy", "--band-axis", "7"], "7"),
        (["words.txt", "out.npy"], "words.txt"),
        (["cut.npy", "out.npy"], "cut.npy"),
        (["nan.npy", "out.npy"], "nan.npy contains NaN at row 3, column 4, band 5"),
        (["nan.npy", "out.npy"], "give --nodata nan"),
        (["cube.npy", "folder"], "folder does not have the extension of a known format"),
        (["cube.npy", "folder", "--overwrite"], "folder does not have the extension"),
        (["cube.npy", "folder.npy", "--overwrite"], "folder.npy is a folder"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(cube, arguments, problem, tmp_path):
    (tmp_path / "words.txt").write_text("no numbers here")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cube.npy").read_bytes()[:-100])
    holed = cube.astype(np.float32)
    holed[3, 4, 5] = np.nan
    np.save("nan.npy", holed)
    for name in ("folder", "folder.npy"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    if not any("--band-axis" in str(argument) for argument in arguments):
        arguments = [*arguments, "--band-axis", "2"]
    assert problem in fails("cube", "denoise", *arguments)
    assert sorted(tmp_path.rglob("*")) == before


def test_learning_from_a_file_is_learning_from_its_patches(cube):
    told = succeeds(
        "cube", "learn", "cube.hdr", "-o", "model.safetensors", "--max-iter", 3, "--seed", 0
    ).stdout
    assert "8 × 8" in told
    assert str(5 * 4 * 12) in told
    expected = learn(cube, (8, 8), band_axis=2, max_iter=3, random_state=0).dictionary_
    found = load_dictionary("model.safetensors")
    for one, other in zip(found.factors, expected.factors, strict=True):
        np.testing.assert_array_equal(one, other)
    for place in (["-o", "model.safetensors"], []):
        assert "already exists" in fails("cube", "learn", "cube.hdr", *place)


def test_the_model_file_is_an_option_and_not_an_argument(cube):
    problem = fails("cube", "learn", "cube.hdr", "one.safetensors", "-o", "other.safetensors")
    assert "unexpected extra argument(s) (one.safetensors). Usage:" in problem
    assert not list(Path().glob("*.safetensors"))


@pytest.mark.parametrize(
    ("patch", "problem"), [("64x8", "do not fit in"), ("8y8", "'8y8' is not a")]
)
def test_invalid_patch_shapes_are_refused(cube, patch, problem):
    assert problem in fails("cube", "learn", "cube.hdr", "-o", "m.safetensors", "--patch", patch)


def test_learning_with_three_modes_prints_json(cube):
    arguments = ("cube", "learn", "cube.npy", "-o", "m.safetensors", "--patch", "8x8x4", "-s", 8)
    options = ("--max-iter", 2, "--seed", 0, "--band-axis", 2, "--remove-means")
    record = record_of(*arguments, *options)
    patches = CubePatches(open_cube(cube, band_axis=2), (8, 8, 4))
    assert record["samples"] == len(patches)
    assert (record["iterations"], record["method"]) == (2, "ols")
    assert len(record["history"]["rmse"]) == 3
    assert record["rmse"] == min(record["history"]["rmse"])
    assert load_dictionary("m.safetensors").n_atoms == (8, 8, 4)
    settings = {"band_axis": 2, "max_iter": 2, "random_state": 0, "remove_means": True}
    expected = learn(cube, (8, 8, 4), None, 8, **settings).dictionary_
    assert load_dictionary("m.safetensors") == expected


def test_an_interrupt_ends_learning_and_keeps_the_model(cube, monkeypatch):
    @contextmanager
    def progress(output, description, total):
        steps = iter(range(total))

        def advance(note=""):
            if next(steps) == 1:
                raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr(Output, "progress", progress)
    result = run("cube", "learn", "cube.hdr", "-o", "m.safetensors", "--max-iter", 9, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["stop_reason"] == "interrupted"
    assert load_dictionary("m.safetensors").patch_shape == (8, 8)


def test_neither_file_of_an_envi_cube_is_replaced_without_overwrite(cube):
    succeeds("cube", "denoise", "cube.hdr", "scene.dat", "-q")
    Path("kept.dat").write_text("precious")
    before = Path("scene.hdr").read_bytes()
    assert "kept.dat already exists" in fails("cube", "denoise", "scene.hdr", "kept.hdr")
    assert Path("kept.dat").read_text() == "precious"
    assert "scene.hdr would overwrite" in fails("cube", "denoise", "scene.dat", "scene.img")
    for names in (("scene.hdr", "scene.dat"), ("scene.dat", "scene.hdr")):
        assert "would overwrite the input" in fails("cube", "denoise", *names, "--overwrite")
    assert Path("scene.hdr").read_bytes() == before
    assert not Path("scene.img").exists()


def test_a_band_axis_that_contradicts_the_format_is_refused(cube):
    succeeds("cube", "denoise", "cube.hdr", "scene.hdr", "-q")
    axis = (open_cube("scene.hdr").band_axis + 1) % 3
    problem = fails("cube", "denoise", "scene.hdr", "out.hdr", "--band-axis", axis)
    assert "as its format says" in problem
