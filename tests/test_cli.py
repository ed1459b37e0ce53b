"""The command line: what each command writes and prints, and how errors end."""

import io
import json
import re
import signal
import subprocess
import sys
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

import kronlearn as kl
from kronlearn.cli import app as cli
from kronlearn.cli import patches as cli_patches
from kronlearn.cli.errors import in_options
from kronlearn.cli.output import Output
from kronlearn.cli.record import fitted_entry, history_in, thinned_history
from kronlearn.experiments.data import find_images
from kronlearn.io.images import luminance, read_picture
from kronlearn.io.model_files import read_file, save_dictionary


def drawn_patches(*arguments, **options):
    """The patches of images, as an array."""
    found = cli_patches.drawn_patches(*arguments, **options)
    return found.read(0, len(found)).reshape(-1, *found.patch_shape)


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Nothing that a command writes by default lands anywhere else."""
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def succeeds(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def fails(code, *arguments):
    """The one line that a command ends with."""
    result = run(*arguments)
    assert result.exit_code == code
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert "Traceback" not in result.output
    return lines[0]


@pytest.fixture
def patches(tmp_path, rng):
    """A file with 200 patches of 4 × 6."""
    path = tmp_path / "patches.npy"
    np.save(path, rng.standard_normal((200, 4, 6)).astype(np.float32))
    return path


@pytest.fixture
def image(tmp_path, rng):
    """A file with a grey image of 40 × 24."""
    path = tmp_path / "image.png"
    Image.fromarray(rng.integers(0, 256, (40, 24), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    kl.KroneckerDictionary([np.eye(4), np.eye(6, dtype=np.float32)[:, :3]]).save(path)
    return path


# The whole


def test_the_version_is_printed():
    assert succeeds("--version").stdout == f"kronlearn {kl.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_help_lists_the_commands(arguments):
    text = succeeds(*arguments).stdout
    assert all(command in text for command in ("demo", "learn", "denoise", "show", "bench"))


def test_a_command_imports_no_more_than_it_needs(model):
    code = f"""
import sys
from kronlearn.cli.app import app
app(["--help"], standalone_mode=False)
assert not {{"numpy", "rich"}} & set(sys.modules), "the help"
app(["show", {str(model)!r}], standalone_mode=False)
assert not {{"sklearn", "matplotlib", "skimage", "PIL"}} & set(sys.modules), "show"
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def pages_of_help(command=None, names=()):
    """The help of a command and of all commands in it, by name."""
    command = command or get_command(cli.app)
    pages = {names: succeeds(*names, "--help").stdout}
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            pages |= pages_of_help(command.get_command(None, name), (*names, name))
    return pages


def test_the_help_shows_no_types_and_whole_sentences():
    pages = pages_of_help()
    assert len(pages) >= 20
    for names, text in pages.items():
        options = text[text.index("Options:") :]
        assert not re.search(r"<[\w\[\]]+>", text), names
        assert "--help" in options
    # A line goes on until the next word does not fit.
    lines = pages["denoise",].splitlines()
    (start,) = (k for k, line in enumerate(lines) if "PNG, JPEG" in line)
    assert len(lines[start]) + len(lines[start + 1].split()[0]) > 77


def test_the_list_of_commands_shows_the_first_lines_of_their_help():
    for name, line in cli.COMMANDS.items():
        assert succeeds(name, "--help").stdout.splitlines()[2].strip() == line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cook"], "Error: No such command 'cook'."),
        (["learn", "--spoon", "x.npy"], "Error: No such option: --spoon"),
        (["learn"], "Error: Missing argument"),
        (["learn", "x.npy", "--max-iter", "many"], "Error: --max-iter: "),
        (["learn", "x.npy", "--structure", "soft"], "Error: --structure: "),
        (["show"], "Error: Missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments, message):
    assert fails(2, *arguments).startswith(message)


def test_unexpected_failures_are_one_line_and_exit_code_1(monkeypatch, model):
    def broken(*arguments):
        raise KeyError("spoon")

    monkeypatch.setattr("kronlearn.cli.show.load_dictionary", broken)
    line = fails(1, "show", model)
    assert line == "Error: KeyError: 'spoon' (kronlearn --traceback … shows where)"
    assert "in broken" in run("--traceback", "show", model).stderr


def test_a_machine_that_fails_is_one_line_and_exit_code_1(monkeypatch, model):
    def full_disk(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr("kronlearn.cli.show.load_dictionary", full_disk)
    assert fails(1, "show", model) == "Error: No space left on device"


def test_an_interrupt_is_exit_code_130(monkeypatch, model):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("kronlearn.cli.show.load_dictionary", interrupted)
    assert fails(130, "show", model) == "Interrupted."


def call_main(monkeypatch, *arguments):
    """The exit code of the program, as it is started from a shell."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(sys, "argv", ["kronlearn", *map(str, arguments)])
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return end.value.code


def test_a_terminal_that_knows_only_ascii_gets_other_characters(model, monkeypatch):
    save_dictionary(kl.load_dictionary(model), model, info={"noise": "σ"})
    for options in ([], ["--json"]):
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", stream)
        assert call_main(monkeypatch, "show", model, *options) == 0
        stream.flush()
        text = stream.buffer.getvalue().decode("ascii")
        if options:
            assert json.loads(text)["info"] == {"noise": "σ"}
        else:
            assert "4 ? 3" in text


def test_terminated_learning_saves_its_model(tmp_path, patches, monkeypatch, capsys):
    def terminate(note=""):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Output, "progress", lambda *_: nullcontext(terminate))
    output = tmp_path / "out"
    assert call_main(monkeypatch, "learn", patches, "-o", output, "-q") == 143
    assert capsys.readouterr().err == "Terminated.\n"
    assert read_file(output, "dictionary")[1]["stop_reason"] == "interrupted"


def test_a_terminated_command_leaves_no_temporary_file(tmp_path, model, monkeypatch):
    def terminate(figure, place, **options):
        place.write_text("half a picture")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", terminate)
    assert call_main(monkeypatch, "show", model, "--picture", tmp_path / "atoms.png") == 143
    assert list(tmp_path.iterdir()) == [model]


def test_warnings_are_notes_unless_quiet(model, monkeypatch):
    def warn(path):
        warnings.warn("Mind\nthe gap.", UserWarning, stacklevel=2)
        return kl.load_dictionary(path)

    monkeypatch.setattr("kronlearn.cli.show.load_dictionary", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert succeeds("show", model).stderr == "Note: Mind the gap.\n"
        assert succeeds("show", model, "--quiet").stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n_atoms=(3, 4) names 2 modes; pass one.", "--atoms 3x4 names 2 modes; give one."),
        ('n_terms=2 needs structure="general".', "--terms 2 needs --structure general."),
        ("if so, pass nodata=float('nan').", "if so, give --nodata nan."),
        ("tol=-1.5 is below 0; pass tol=None.", "--tol -1.5 is below 0; leave --tol out."),
        ("pass 1, -1 or None.", "give 1, -1, or leave the option out."),
        ("(say which axis with band_axis).", "(say which axis with --band-axis)."),
    ],
)
def test_errors_of_the_library_speak_of_options(text, expected):
    assert in_options(text) == expected


# learn


def test_an_array_of_patches_is_learned_from_and_the_model_saved(tmp_path, patches):
    output = tmp_path / "out.safetensors"
    result = succeeds(
        *("learn", patches, "-o", output, "--atoms", "5x7", "-s", 3),
        *("--max-iter", 4, "--seed", 1, "-j", 1),
    )
    d = kl.load_dictionary(output)
    assert (d.patch_shape, d.n_atoms) == ((4, 6), (5, 7))
    info = read_file(output, "dictionary")[1]
    assert (info["samples"], info["iterations"], info["n_nonzero_coefs"]) == (200, 4, 3)
    assert f"{info['rmse']:.5g}" in result.stdout
    assert str(output) in result.stdout.replace("\n", "")


def test_the_command_learns_what_the_estimator_learns(tmp_path, patches):
    output = tmp_path / "out.safetensors"
    succeeds("learn", patches, "-o", output, "-s", 3, "--max-iter", 3, "--seed", 1)
    same = kl.KroneckerDictionaryLearning((8, 12), n_nonzero_coefs=3, max_iter=3, random_state=1)
    assert kl.load_dictionary(output) == same.fit(np.load(patches)).dictionary_


def test_one_number_is_the_size_of_every_mode(tmp_path, image):
    flat = tmp_path / "flat.npy"
    np.save(flat, np.ones((50, 16)) + np.eye(50, 16))
    options = ["--patch", 4, "--max-iter", 1, "-q", "--overwrite", "-o", tmp_path / "out"]
    for path in (image, flat):
        succeeds("learn", path, "--atoms", 5, *options)
        d = kl.load_dictionary(tmp_path / "out")
        assert (d.patch_shape, d.n_atoms) == ((4, 4), (5, 5))
    succeeds("learn", image, "--colour", "--atoms", 5, *options)
    assert kl.load_dictionary(tmp_path / "out").n_atoms == (5, 5, 3)


def test_other_files_hold_patches_too(tmp_path, patches):
    zarr = pytest.importorskip("zarr")
    h5py = pytest.importorskip("h5py")
    samples = np.load(patches)
    zarr.create_array(tmp_path / "p.zarr", data=samples, chunks=(64, 4, 6))
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["one"], file["two"] = samples, samples[:50]
    options = ["-s", 3, "--max-iter", 2, "--seed", 0]
    succeeds("learn", patches, "-o", tmp_path / "0", *options)
    succeeds("learn", tmp_path / "p.zarr", "-o", tmp_path / "1", *options)
    succeeds("learn", tmp_path / "p.h5", "--dataset", "one", "-o", tmp_path / "2", *options)
    found = [kl.load_dictionary(tmp_path / name) for name in "012"]
    assert found[0] == found[1] == found[2]
    line = fails(2, "learn", tmp_path / "p.h5")
    assert line.endswith("two (50, 4, 6). Choose one with --dataset.")


def test_means_are_removed_from_arrays_if_asked_for(tmp_path, patches):
    output = tmp_path / "out"
    succeeds(
        "learn", patches, "-o", output, "-s", 3, "--max-iter", 1, "--seed", 0, "--remove-means"
    )
    samples = np.load(patches)
    samples -= samples.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    same = kl.KroneckerDictionaryLearning((8, 12), n_nonzero_coefs=3, max_iter=1, random_state=0)
    assert kl.load_dictionary(output) == same.fit(samples).dictionary_


def test_flat_samples_need_a_patch_shape(tmp_path, patches):
    flat = tmp_path / "flat.npy"
    np.save(flat, np.load(patches).reshape(200, 24))
    first, second = tmp_path / "first", tmp_path / "second"
    options = ["-s", 2, "--max-iter", 2, "--seed", 0]
    succeeds("learn", flat, "--patch", "4x6", "-o", first, *options)
    succeeds("learn", patches, "-o", second, *options)
    assert kl.load_dictionary(first) == kl.load_dictionary(second)
    line = fails(2, "learn", flat, "-o", tmp_path / "third", *options)
    assert "flat samples of 24 numbers; give their shape, for example --patch 8x8" in line


def test_images_are_cut_into_patches_without_their_means(tmp_path, image):
    output = tmp_path / "out.safetensors"
    options = ["-o", output, "--max-iter", 2, "--seed", 0, "--json"]
    result = succeeds("learn", image, image, *options)
    record = json.loads(result.stdout)
    assert record["samples"] == 2 * 5 * 3
    assert record["patch_shape"] == [8, 8]
    assert record["n_atoms"] == [16, 16]
    assert len(record["history"]["rmse"]) == record["iterations"] + 1
    assert record["rmse"] == min(record["history"]["rmse"])
    rmse = {}
    for option in ("--remove-means", "--keep-means"):
        again = succeeds("learn", image, image, *options, "-f", option)
        rmse[option] = json.loads(again.stdout)["history"]["rmse"][0]
    assert record["history"]["rmse"][0] == rmse["--remove-means"] != rmse["--keep-means"]
    overlapping = succeeds(
        *("learn", image, "-o", output, "--patch", "4x6", "--stride", 2, "--max-iter", 1),
        *("--json", "--overwrite"),
    )
    assert json.loads(overlapping.stdout)["samples"] == 19 * 10


@pytest.fixture
def folder(tmp_path, rng):
    """A folder with three images of different sizes, one in a folder of its own, and more."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    sizes = {"b.png": (16, 24), "a.tif": (80, 80), "more/c.JPG": (96, 80), ".hidden/d.png": (8, 8)}
    for name, shape in sizes.items():
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_folders_are_searched_for_images(tmp_path, folder):
    output = tmp_path / "out"
    text = succeeds("learn", folder, "-o", output, "--max-iter", 1).stdout
    assert f"Found 3 images in {folder}" in text.replace("\n", "")
    assert read_file(output, "dictionary")[1]["samples"] == 6 + 100 + 120
    assert [path.name for path in find_images(folder)] == ["a.tif", "b.png", "c.JPG"]
    (tmp_path / "empty").mkdir()
    assert "empty contains no images" in fails(2, "learn", tmp_path / "empty")
    # The images that were found are inputs like any other.
    line = fails(2, "learn", folder, "-o", folder / "b.png", "--overwrite")
    assert "would overwrite the input" in line


def test_patches_are_drawn_evenly_over_the_images(folder):
    paths = find_images(folder)
    patches = drawn_patches(paths, (8, 8), None, n_samples=60, seed=0, keep_means=True)
    # 20 of a.tif, the 6 that b.png has, and the rest of c.JPG.
    assert len(patches) == 60
    for path, drawn in zip(paths, np.split(patches, [20, 26]), strict=True):
        grid = np.asarray(kl.images.extract_patches(luminance(read_picture(path)), 8, 8))
        assert len(np.unique(drawn, axis=0)) == len(drawn)
        assert all((patch == grid).all(axis=(1, 2)).any() for patch in drawn)
    again = drawn_patches(paths, (8, 8), None, n_samples=60, seed=0, keep_means=True)
    assert np.array_equal(patches, again)
    assert not np.array_equal(patches, drawn_patches(paths, (8, 8), None, 60, 1, keep_means=True))


def test_colour_images_give_patches_of_three_colours_if_asked_for(tmp_path, folder, image):
    output = tmp_path / "out"
    options = ["-o", output, "--max-iter", 1, "-q", "--overwrite"]
    succeeds("learn", folder, "--colour", "--patch", "4x6", *options)
    d = kl.load_dictionary(output)
    assert (d.patch_shape, d.n_atoms) == ((4, 6, 3), (8, 12, 3))
    succeeds("learn", folder, "--colour", "--patch", "4x4x3", "--atoms", "5x7x4", *options)
    d = kl.load_dictionary(output)
    assert (d.patch_shape, d.n_atoms) == ((4, 4, 3), (5, 7, 4))
    pixels = np.asarray(Image.open(folder / "b.png"), np.float32)
    colours = drawn_patches([folder / "b.png"], (8, 8), None, 99, 0, colour=True, keep_means=True)
    assert np.array_equal(colours[4], pixels[8:16, 8:16])
    gray = drawn_patches([image], (8, 8), None, 99, 0, colour=True, keep_means=True)
    assert np.array_equal(gray[..., 0], gray[..., 2])


def test_the_pages_of_a_stack_are_images(tmp_path, rng):
    stack = rng.integers(0, 256, (3, 16, 24), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "stack.tif", stack, photometric="minisblack")
    patches = drawn_patches([tmp_path / "stack.tif"], (8, 8), None, 99, 0, keep_means=True)
    assert patches.shape == (18, 8, 8)
    assert np.array_equal(patches[-1], stack[2, 8:, 16:])


def test_images_of_different_types_are_not_mixed(tmp_path, image):
    Image.fromarray(np.ones((16, 16), np.uint16)).save(tmp_path / "deep.png")
    line = fails(2, "learn", image, tmp_path / "deep.png")
    assert "image.png holds uint8 and" in line
    assert "deep.png uint16; learn from images of one type" in line


def test_black_and_white_images_are_gray_levels(tmp_path, image):
    Image.fromarray(np.eye(16, dtype=bool)).save(tmp_path / "bits.png")
    drawn = drawn_patches([image, tmp_path / "bits.png"], (8, 8), None, 99, 0, keep_means=True)
    assert np.array_equal(drawn[-1], 255 * np.eye(8))


def test_a_model_remembers_how_it_was_learned(tmp_path, patches):
    output = tmp_path / "out"
    options = ["-s", 3, "--max-iter", 5, "--seed", 0]
    record = json.loads(succeeds("learn", patches, "-o", output, *options, "--json").stdout)
    info = read_file(output, "dictionary")[1]
    assert info["history"]["iteration"] == [0, 1, 2, 3, 4, 5]
    assert info["history"]["rmse"] == pytest.approx(record["history"]["rmse"], rel=1e-4)
    codes = kl.sparse_code(np.load(patches), kl.load_dictionary(output), 3, method="ols")
    counts = np.bincount(codes.indices, minlength=96).reshape(8, 12)
    assert info["usage"] == {
        "samples": 200,
        "atoms": np.count_nonzero(counts),
        "columns": [counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()],
    }


@pytest.mark.parametrize("tol", [None, 1.5])
def test_the_reported_error_is_that_of_the_dictionary_that_was_saved(tmp_path, patches, tol):
    options = ["-s", 6, "--max-iter", 5, "--seed", 0, "--method", "omp"]
    options += [] if tol is None else ["--tol", tol]
    output = tmp_path / "out"
    record = json.loads(succeeds("learn", patches, "-o", output, *options, "--json").stdout)
    samples, dictionary = np.load(patches), kl.load_dictionary(output)
    codes = kl.sparse_code(samples, dictionary, 6, tol)
    rmse = np.sqrt(np.mean((samples - dictionary.reconstruct(codes)) ** 2))
    assert record["rmse"] == pytest.approx(rmse, rel=1e-6)
    assert record["mean_nonzeros"] == codes.nnz / len(samples)


@pytest.mark.parametrize(("tol", "best"), [(None, 1), (0.5, 2)])
def test_the_best_dictionary_is_the_last_of_the_lowest(tol, best):
    history = {"rmse": [3, 1, 1.5, 2], "mean_nonzeros": [4, 3, 2, 3]}
    entry = fitted_entry(SimpleNamespace(tol=tol, history_=history))
    assert entry == {name: values[best] for name, values in history.items()}


def test_a_long_history_is_thinned():
    n = 5000
    numbers = list(np.linspace(3, 1, n))
    history = {"rmse": numbers, "mean_nonzeros": [6] * n, "seconds": numbers, "other": [0] * n}
    thin = thinned_history(history)
    assert set(thin) == {"iteration", "rmse", "mean_nonzeros", "seconds"}
    assert (thin["iteration"][0], thin["iteration"][-1]) == (0, n - 1)
    assert len(thin["rmse"]) == len(thin["iteration"]) <= 200
    chosen = [numbers[i] for i in thin["iteration"]]
    assert thin["rmse"] == pytest.approx(chosen, rel=1e-4)
    assert history_in({"history": thin}) == thin


def test_orthonormal_factors_are_square_by_default(tmp_path, patches):
    output = tmp_path / "out.safetensors"
    succeeds("learn", patches, "-o", output, "--structure", "orthonormal", "--max-iter", 3, "-q")
    d = kl.load_dictionary(output)
    assert d.is_orthonormal
    assert d.n_atoms == (4, 6)
    assert read_file(output, "dictionary")[1]["method"] == "threshold"


def test_a_sum_of_terms_is_learned_and_shown(tmp_path, patches):
    output, picture = tmp_path / "sum.safetensors", tmp_path / "atoms.png"
    options = ["--terms", 2, "-s", 3, "--seed", 0, "--max-iter", 4]
    record = json.loads(succeeds("learn", patches, "-o", output, *options, "--json").stdout)
    assert record["n_terms"] == 2
    d = kl.load_dictionary(output)
    expected = kl.KroneckerDictionaryLearning(
        (8, 12), n_nonzero_coefs=3, n_terms=2, max_iter=4, random_state=0
    ).fit(np.load(patches))
    assert d == expected.dictionary_
    text = succeeds("show", output, "--picture", picture).stdout
    assert re.search(r"^terms +2 *$", text, re.MULTILINE)
    assert picture.read_bytes().startswith(PNG)
    record = json.loads(succeeds("show", output, "--json").stdout)
    assert record["n_terms"] == record["info"]["n_terms"] == 2
    gram = np.abs(d.to_dense().T @ d.to_dense())
    np.fill_diagonal(gram, 0)
    assert record["coherence"] == [pytest.approx(gram.max(), rel=1e-5)]


@pytest.mark.parametrize("colour", [False, True])
def test_convolutional_filters_are_learned_and_shown(tmp_path, colour):
    photo, output, picture = (tmp_path / name for name in ("a.png", "filters", "filters.png"))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 30, 3), np.uint8)).save(photo)
    options = ["--patch", 5, "--atoms", 2, "--penalty", 0.2, "--max-iter", 2, "--seed", 0]
    options += ["--colour", "--structure", "dense"] if colour else []
    given = ["learn", "--convolutional", photo, "-o", output, *options]
    record = json.loads(succeeds(*given, "--json").stdout)
    d = kl.convolutional.load_filters(output)
    assert (record["filters"], record["iterations"]) == (d.n_filters, 2) == (2 if colour else 4, 2)
    assert d.filter_shape == ((3, 5, 5) if colour else (5, 5))
    assert len(record["history"]["objective"]) == 3
    text = succeeds("show", output, "--picture", picture).stdout
    assert re.search(rf"^structure +{d.structure} *$", text, re.MULTILINE)
    assert picture.read_bytes().startswith(PNG)
    assert "--tol is for patches" in fails(2, *given, "-f", "--tol", 3)
    assert "--penalty is for filters" in fails(2, "learn", photo, "--penalty", 1)


def test_one_term_is_learned_by_default(tmp_path, patches, model):
    succeeds("learn", patches, "-o", tmp_path / "one", "-s", 3, "--max-iter", 2, "-q")
    assert isinstance(kl.load_dictionary(tmp_path / "one"), kl.KroneckerDictionary)
    assert json.loads(succeeds("show", model, "--json").stdout)["n_terms"] == 1
    assert "Kronecker" not in succeeds("show", model).stdout


def test_a_tolerance_takes_away_the_limit_of_six_atoms(tmp_path, patches):
    output = tmp_path / "out.safetensors"
    succeeds("learn", patches, "-o", output, "--tol", 0.5, "--max-iter", 2, "-q")
    info = read_file(output, "dictionary")[1]
    assert info["n_nonzero_coefs"] is None
    assert info["mean_nonzeros"] > 6


def test_quiet_prints_nothing(tmp_path, patches):
    result = succeeds("learn", patches, "-o", tmp_path / "out", "--max-iter", 1, "--quiet")
    assert result.output == ""


def test_an_existing_model_is_replaced_only_if_asked_for(patches, model):
    before = model.read_bytes()
    options = ["learn", patches, "--max-iter", 1, "-q"]
    # The default name is taken, too.
    for line in (fails(2, *options), fails(2, *options, "-o", model)):
        assert "model.safetensors already exists; give another name, or --overwrite" in line
    assert model.read_bytes() == before
    succeeds(*options, "--overwrite")
    assert model.read_bytes() != before


@pytest.mark.parametrize("option", ["--output", "--checkpoint"])
def test_learning_never_overwrites_its_input(patches, option):
    before = patches.read_bytes()
    message = fails(2, "learn", patches, "--max-iter", 1, option, patches)
    assert "would overwrite the input" in message
    assert patches.read_bytes() == before


def test_learning_resumes_from_a_checkpoint(tmp_path, patches):
    options = ["-s", 3, "--seed", 1, "-q"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    checkpoint = ["--checkpoint", tmp_path / "state"]
    succeeds("learn", patches, "-o", whole, "--max-iter", 8, *options)
    succeeds("learn", patches, "-o", parts, "--max-iter", 4, *checkpoint, *options)
    succeeds("learn", patches, "-o", parts, "--max-iter", 8, "-f", *checkpoint, *options)
    assert kl.load_dictionary(parts) == kl.load_dictionary(whole)


def test_what_was_learned_before_an_interrupt_is_saved(tmp_path, patches, monkeypatch):
    def interrupt_in_the_third(note=""):
        steps.append(note)
        if len(steps) == 3:
            raise KeyboardInterrupt

    steps = []
    monkeypatch.setattr(
        "kronlearn.cli.output.Output.progress", lambda *_: nullcontext(interrupt_in_the_third)
    )
    output = tmp_path / "out"
    assert fails(130, "learn", patches, "-o", output, "-q") == "Interrupted."
    info = read_file(output, "dictionary")[1]
    assert info["stop_reason"] == "interrupted"
    assert info["iterations"] in (2, 3)


def test_an_interrupt_before_anything_was_learned_leaves_no_model(tmp_path, patches, monkeypatch):
    def interrupted(self, samples):
        raise KeyboardInterrupt

    monkeypatch.setattr(kl.KroneckerDictionaryLearning, "fit", interrupted)
    assert fails(130, "learn", patches, "-o", tmp_path / "out", "-q") == "Interrupted."
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--patch", "8y8"], "--patch: 8y8 is not a size; write one number per mode, as in 8x8."),
        (["--patch", "0x8"], "is not a size"),
        (["--patch", "5x5"], "has shape (200, 4, 6); samples of shape (5, 5) are needed"),
        (["--stride", "2"], "--stride is for images"),
        (["--samples", "2"], "--samples is for images"),
        (["--colour"], "--colour is for images"),
        (["--structure", "orthonormal", "--atoms", "5x7"], "orthonormal"),
        (["--structure", "orthonormal", "--terms", "2"], "--terms 2 needs --structure general"),
        (["--terms", "0"], "--terms: "),
        (["-o", "."], "--output . is a folder"),
        (["-o", "no/where/model"], "the folder no/where does not exist"),
    ],
)
def test_bad_options_are_refused(patches, options, message):
    assert message in fails(2, "learn", patches, *options)


def test_bad_inputs_are_refused(tmp_path, image, patches):
    (tmp_path / "text.png").write_bytes(PNG + b"not an image")
    (tmp_path / "text.npy").write_text("not an array")
    np.save(tmp_path / "line.npy", np.ones(5))
    np.save(tmp_path / "complex.npy", np.ones((5, 4), complex))
    np.save(tmp_path / "objects.npy", np.array([[None]], dtype=object), allow_pickle=True)
    for name, message in {
        "nothing.png": "nothing.png does not exist",
        "nothing.npy": "nothing.npy does not exist",
        "text.png": "text.png cannot be read as an image",
        "text.npy": "text.npy cannot be read as a NumPy array",
        "line.npy": "line.npy has shape (5,)",
        "complex.npy": "complex.npy holds complex128",
        "objects.npy": "objects.npy holds object values",
    }.items():
        assert message in fails(2, "learn", tmp_path / name, "-o", tmp_path / "out")
    assert "give one array, or one or more images" in fails(2, "learn", patches, image)
    assert "has 3 sizes; images need two" in fails(2, "learn", image, "--patch", "2x2x2")
    assert "do not fit in an image of 40 × 24" in fails(2, "learn", image, "--patch", "8x30000")
    assert "--seed: " in fails(2, "learn", image, "--seed", "-1")
    assert "--stride: " in fails(2, "learn", image, "--stride", "0")
    assert "--samples: " in fails(2, "learn", image, "--samples", "0")
    assert "--samples 1 is less than one for each of 2" in fails(
        2, "learn", image, image, "--samples", "1"
    )
    assert not (tmp_path / "out").exists()


# show


def test_show_tells_the_facts(model):
    text = succeeds("show", model).stdout
    assert "4 × 6" in text
    assert "4 × 3" in text
    record = json.loads(succeeds("show", model, "--json").stdout)
    assert record["patch_shape"] == [4, 6]
    assert record["is_orthonormal"] is True
    assert record["coherence"] == [0, 0]


def test_show_draws_the_atoms(model, tmp_path):
    picture = tmp_path / "picture.png"
    assert succeeds("show", model, "--picture", picture, "-q").output == ""
    assert picture.read_bytes().startswith(PNG)
    assert "notapicture" in fails(2, "show", model, "--picture", tmp_path / "a.notapicture")


def test_show_draws_how_learning_went(tmp_path, patches, model):
    learned, curve = tmp_path / "learned", tmp_path / "curve.png"
    succeeds("learn", patches, "-o", learned, "-s", 3, "--max-iter", 3, "-q")
    text = succeeds("show", learned, "--convergence", curve).stdout
    assert curve.read_bytes().startswith(PNG)
    assert "atoms used" in text
    assert "by 200 patches" in text
    assert "history" not in text
    assert "has no history of its learning" in fails(
        2, "show", model, "--convergence", tmp_path / "other.png"
    )


def test_show_overwrites_nothing_unless_asked_to(tmp_path, model):
    picture = tmp_path / "picture.png"
    picture.write_text("mine")
    assert "picture.png already exists" in fails(2, "show", model, "--picture", picture)
    assert "would overwrite the input" in fails(2, "show", model, "--picture", model, "-f")
    assert picture.read_text() == "mine"
    succeeds("show", model, "--picture", picture, "--overwrite")
    assert picture.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "info",
    [
        {"history": {"rmse": [1, 2]}, "usage": {"samples": 3}},
        {"history": {"iteration": [1], "rmse": ["x"], "mean_nonzeros": [1], "seconds": [1]}},
        {"history": "none", "usage": "none"},
        {"usage": {"samples": 1, "atoms": 2, "columns": [["x"], 3, [0, 0]]}},
    ],
)
def test_show_bears_what_others_wrote_into_a_file(model, info):
    save_dictionary(kl.load_dictionary(model), model, info=info)
    succeeds("show", model)
    assert "has no history" in fails(2, "show", model, "--convergence", "curve.png")


def test_show_prints_nothing_that_a_terminal_would_obey(model):
    info = {"note": "\x1b]0;title\x07 [red]x[/red]", "long": "y" * 1000, "missing": None}
    save_dictionary(kl.load_dictionary(model), model, info=info)
    text = succeeds("show", model).stdout
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert "missing" not in text
    assert "y" * 201 not in text


def test_show_refuses_what_is_no_model(tmp_path, patches):
    assert fails(2, "show", tmp_path / "nothing").endswith("nothing does not exist.")
    assert "is not a safetensors file" in fails(2, "show", patches)
    assert "is not a regular file" in fails(2, "show", tmp_path)


# demo


def test_the_demo_beats_the_dct_and_writes_pictures_and_a_model(tmp_path):
    folder = tmp_path / "new" / "folder"
    text = succeeds("demo", "--quick", "-o", folder).stdout
    dct, orthonormal, overcomplete, general = (
        float(re.search(rf"^{name} +\d+ × \d+ atoms: ([\d.]+)", text, re.MULTILINE)[1])
        for name in ("DCT", "learned, orthonormal", "overcomplete DCT", "learned, general")
    )
    assert general < overcomplete < dct
    assert orthonormal < dct
    for name in ("dictionary.png", "convergence.png", "denoised.png"):
        assert (folder / name).read_bytes().startswith(PNG)
    assert kl.load_dictionary(folder / "dictionary.safetensors").n_atoms == (16, 16)
    found = re.search(
        r"added to a part of camera \(128 × 128 pixels\).*: ([\d.]+) dB → ([\d.]+)", text
    )
    assert float(found[2]) > float(found[1]) + 8


def test_a_file_is_refused_as_the_folder_to_write_to(model):
    for command in (["demo"], ["reproduce", "figure1"]):
        assert "is a file; give the name of a folder" in fails(2, *command, "-o", model)
