"""The command line: what each command writes and prints, and its errors and exit codes."""

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

import kronlearn as kl
from command_line import fails, record_of, run, succeeds
from kronlearn.cli import app as cli
from kronlearn.cli.errors import in_options
from kronlearn.cli.fitting import fitted_entry
from kronlearn.cli.output import Output
from kronlearn.cli.patches import sample_patches
from kronlearn.cli.record import history_in, thinned_history
from kronlearn.experiments.data import find_images
from kronlearn.io.images import luminance, read_picture
from kronlearn.io.model_files import kind_of, read_file, save_dictionary

pytestmark = pytest.mark.usefixtures("empty_folder")

PNG = b"\x89PNG\r\n\x1a\n"


def info_of(path):
    """The info of a model file: how its dictionary was learned."""
    return read_file(path, "dictionary")[1]


def patches_of(*arguments, **options):
    """Patches of images with their means, as an array."""
    source = sample_patches(*arguments, **options, keep_means=True)
    return source.read(0, len(source)).reshape(-1, *source.patch_shape)


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


@pytest.fixture
def loading(monkeypatch):
    """Replaces the function that ``show`` loads a dictionary with."""
    return lambda call: monkeypatch.setattr("kronlearn.cli.show.load_dictionary", call)


# All commands


def test_the_version_and_the_commands_are_printed():
    assert succeeds("--version").stdout == f"kronlearn {kl.__version__}\n"
    for arguments in ([], ["--help"], ["-h"]):
        text = succeeds(*arguments).stdout
        assert all(f"  {name}  " in text for name in cli.COMMANDS)


def test_a_command_imports_no_more_than_it_needs(model):
    code = f"""
import sys
from contextlib import suppress
from kronlearn.cli.app import app
with suppress(SystemExit):
    app(["--help"])
assert not {{"numpy", "rich"}} & set(sys.modules), "the help"
with suppress(SystemExit):
    app(["show", {str(model)!r}])
assert not {{"sklearn", "matplotlib", "skimage", "PIL"}} & set(sys.modules), "show"
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def pages_of_help(command=None, names=()):
    """The help of a command and all its subcommands, by their names."""
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
        assert not re.search(r"<[\w\[\]]+>|[{}]|default:\s+\(", text), names
        assert "--help" in text[text.index("Options:") :]
        assert succeeds(*names, "-h").stdout == text
    for name, line in cli.COMMANDS.items():
        assert pages[name,].splitlines()[2].strip() == line
    # A line goes on until the next word does not fit.
    lines = pages["denoise",].splitlines()
    (start,) = (k for k, line in enumerate(lines) if "PNG, JPEG" in line)
    assert len(lines[start]) + len(lines[start + 1].split()[0]) > 77


def test_a_group_without_a_command_prints_its_help():
    result = run("cube")
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")
    assert "  learn    Learn a dictionary from all patches of a cube" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cook"], "No such command 'cook'."),
        (["learn", "--spoon", "x.npy"], "No such option: --spoon"),
        (["learn"], "Missing argument"),
        (["show"], "Missing argument 'MODEL'. Usage: "),
        (["reproduce", "table3"], "Missing option '--images'. Usage: "),
        (["learn", "x.npy", "--max-iter", "many"], "--max-iter: "),
        (["learn", "x.npy", "--structure", "soft"], "--structure: "),
        (["learn", "x.npy", "--n-jobs", "0"], "--n-jobs: '0' is not a number of threads"),
        (["learn", "x.npy", "--seed", "-1"], "--seed: "),
        (["learn", "x.npy", "--stride", "0"], "--stride: "),
        (["learn", "x.npy", "--samples", "0"], "--samples: "),
        (["learn", "x.npy", "--terms", "0"], "--terms: "),
        (
            ["learn", "x.npy", "--patch", "8y8"],
            "--patch: '8y8' is not a size; give positive numbers",
        ),
        (["learn", "x.npy", "--patch", "0x8"], "--patch: '0x8' is not a size"),
        (["demo", "-o", "a.file"], "--output: 'a.file' is a file; give the name of a folder"),
        (["reproduce", "figure1", "-o", "a.file"], "--output: 'a.file' is a file"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, arguments, message):
    (tmp_path / "a.file").touch()
    assert fails(*arguments).startswith(f"Error: {message}")


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (KeyError("spoon"), 1, "Error: KeyError: 'spoon' (kronlearn --traceback … shows where)"),
        (OSError("No space left on device"), 1, "Error: No space left on device"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(loading, model, problem, code, line):
    def broken(*arguments):
        raise problem

    loading(broken)
    assert fails("show", model, code=code) == line
    if isinstance(problem, KeyError):
        assert "in broken" in run("--traceback", "show", model).stderr


def call_main(monkeypatch, *arguments):
    """The exit code of the program, started as from a shell."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(sys, "argv", ["kronlearn", *map(str, arguments)])
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    return end.value.code


def test_characters_that_the_terminal_cannot_show_are_replaced(model, monkeypatch):
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
    assert info_of(output)["stop_reason"] == "interrupted"


def test_a_terminated_command_leaves_no_temporary_file(tmp_path, model, monkeypatch):
    def terminate(figure, place, **options):
        place.write_text("half a picture")
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", terminate)
    assert call_main(monkeypatch, "show", model, "--picture", tmp_path / "atoms.png") == 143
    assert list(tmp_path.iterdir()) == [model]


def test_warnings_are_notes_unless_quiet(model, loading):
    def warn(path):
        warnings.warn("Mind\nthe gap.", UserWarning, stacklevel=2)
        return kl.load_dictionary(path)

    loading(warn)
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
        ("tol=-1.5 is below 0; pass 1.", "--tol -1.5 is below 0; give 1."),
        ("(say which axis with band_axis).", "(say which axis with --band-axis)."),
        ("c.st is filters; read it with kl.convolutional.load_filters.", "c.st is filters."),
    ],
)
def test_errors_of_the_library_name_options(text, expected):
    assert in_options(text) == expected


# learn


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ([], {}),
        (["--atoms", "5x7", "-j", 2], {"n_atoms": (5, 7)}),
        (["--terms", 2], {"n_terms": 2}),
        (["--structure", "orthonormal"], {"structure": "orthonormal", "n_atoms": (4, 6)}),
        (["--tol", 1.5, "--method", "omp"], {"tol": 1.5, "method": "omp"}),
    ],
    ids=str,
)
def test_the_command_learns_what_the_estimator_learns(tmp_path, patches, options, same):
    output = tmp_path / "out"
    arguments = ["learn", patches, "-o", output, "-s", 3, "--max-iter", 4, "--seed", 1, *options]
    record = record_of(*arguments)
    same = {"n_atoms": (8, 12), "n_nonzero_coefs": 3, "max_iter": 4, "random_state": 1} | same
    fitted = kl.KroneckerDictionaryLearning(**same).fit(np.load(patches))
    d = kl.load_dictionary(output)
    assert d == fitted.dictionary_
    samples, info = np.load(patches), info_of(output)
    orthonormal = "structure" in same
    assert info["method"] == ("threshold" if orthonormal else same.get("method", "ols"))
    assert info["n_terms"] == same.get("n_terms", 1)
    # The printed error is that of the saved dictionary.
    codes = kl.sparse_code(samples, d, 3, same.get("tol"), method=info["method"])
    rmse = np.sqrt(np.mean((samples - d.reconstruct(codes)) ** 2))
    assert record["rmse"] == info["rmse"] == pytest.approx(rmse, rel=1e-6)
    assert record["mean_nonzeros"] == codes.nnz / len(samples)
    assert info["history"]["iteration"] == list(range(record["iterations"] + 1))
    assert info["history"]["rmse"] == pytest.approx(record["history"]["rmse"], rel=1e-4)
    counts = np.bincount(codes.indices, minlength=d.n_codes).reshape(d.n_atoms)
    assert info["usage"] == {
        "samples": 200,
        "atoms": np.count_nonzero(counts),
        "columns": [counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist()],
    }


def test_learn_prints_its_results_unless_quiet(tmp_path, patches):
    options = ["learn", patches, "-o", tmp_path / "out", "--tol", 0.5, "--max-iter", 1, "-f"]
    text = succeeds(*options).stdout
    # With a tolerance there is no limit of six atoms.
    assert info_of(tmp_path / "out")["n_nonzero_coefs"] is None
    assert f"{info_of(tmp_path / 'out')['rmse']:.5g}" in text
    assert str(tmp_path / "out") in text.replace("\n", "")
    assert succeeds(*options, "--quiet").output == ""


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


def test_patches_are_read_from_files_of_all_kinds(tmp_path, patches):
    zarr = pytest.importorskip("zarr")
    h5py = pytest.importorskip("h5py")
    samples = np.load(patches)
    np.save(tmp_path / "flat.npy", samples.reshape(200, 24))
    zarr.create_array(tmp_path / "p.zarr", data=samples, chunks=(64, 4, 6))
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["one"], file["two"] = samples, samples[:50]

    def learned(name, *options):
        arguments = ["-o", "out", "-s", 3, "--max-iter", 2, "--seed", 0, "-f", "-q"]
        succeeds("learn", name, *arguments, *options)
        return kl.load_dictionary("out")

    expected = learned("patches.npy")
    assert learned("flat.npy", "--patch", "4x6") == expected
    assert learned("p.zarr") == expected
    assert learned("p.h5", "--dataset", "one") == expected
    assert fails("learn", "p.h5").endswith("two (50, 4, 6). Choose one with --dataset.")
    line = fails("learn", "flat.npy")
    assert "flat samples of 24 numbers; give their shape, for example --patch 8x8" in line
    means = samples.mean(axis=(1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
    np.save("centred.npy", samples - means)
    assert learned("patches.npy", "--remove-means") == learned("centred.npy") != expected


def test_images_are_cut_into_patches_without_their_means(tmp_path, image):
    options = ["learn", image, image, "-o", tmp_path / "out", "--max-iter", 2, "--seed", 0, "-f"]
    record = record_of(*options)
    assert record["samples"] == 2 * 5 * 3
    assert record["patch_shape"] == [8, 8]
    assert record["n_atoms"] == [16, 16]
    rmse = [record_of(*options, option)["rmse"] for option in ("--remove-means", "--keep-means")]
    assert rmse[0] == record["rmse"] < rmse[1]
    assert record_of(*options, "--patch", "4x6", "--stride", 2)["samples"] == 2 * 19 * 10


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
    text = succeeds("learn", folder, "-o", "out", "--max-iter", 1).stdout
    assert f"Found 3 images in {folder}" in text.replace("\n", "")
    assert info_of("out")["samples"] == 6 + 100 + 120
    assert [path.name for path in find_images(folder)] == ["a.tif", "b.png", "c.JPG"]
    (tmp_path / "empty").mkdir()
    assert "empty contains no images" in fails("learn", tmp_path / "empty")
    # Images that were found are inputs, too.
    line = fails("learn", folder, "-o", folder / "b.png", "--overwrite")
    assert "would overwrite the input" in line


def test_patches_are_sampled_evenly_from_the_images(folder):
    paths = find_images(folder)
    patches = patches_of(paths, (8, 8), None, n_samples=60, seed=0)
    # 20 of a.tif, the 6 that b.png has, and the rest of c.JPG.
    assert len(patches) == 60
    for path, drawn in zip(paths, np.split(patches, [20, 26]), strict=True):
        grid = np.asarray(kl.images.extract_patches(luminance(read_picture(path)), 8, 8))
        assert len(np.unique(drawn, axis=0)) == len(drawn)
        assert all((patch == grid).all(axis=(1, 2)).any() for patch in drawn)
    assert np.array_equal(patches, patches_of(paths, (8, 8), None, 60, 0))
    assert not np.array_equal(patches, patches_of(paths, (8, 8), None, 60, 1))


def test_colour_images_give_rgb_patches_on_request(folder, image):
    options = ["-o", "out", "--max-iter", 1, "-q", "--overwrite"]
    for sizes, expected in (
        (["--patch", "4x6"], ((4, 6, 3), (8, 12, 3))),
        (["--patch", "4x4x3", "--atoms", "5x7x4"], ((4, 4, 3), (5, 7, 4))),
    ):
        succeeds("learn", folder, "--colour", *sizes, *options)
        d = kl.load_dictionary("out")
        assert (d.patch_shape, d.n_atoms) == expected
    pixels = np.asarray(Image.open(folder / "b.png"), np.float32)
    colours = patches_of([folder / "b.png"], (8, 8), None, 99, 0, colour=True)
    assert np.array_equal(colours[4], pixels[8:16, 8:16])
    gray = patches_of([image], (8, 8), None, 99, 0, colour=True)
    assert np.array_equal(gray[..., 0], gray[..., 2])


def test_stacks_and_black_and_white_images_are_cut_but_types_are_not_mixed(tmp_path, image, rng):
    stack = rng.integers(0, 256, (3, 16, 24), dtype=np.uint8)
    tifffile.imwrite("stack.tif", stack, photometric="minisblack")
    Image.fromarray(np.eye(16, dtype=bool)).save("bits.png")
    paths = [tmp_path / "stack.tif", tmp_path / "bits.png"]
    drawn = patches_of(paths, (8, 8), None, 99, 0)
    assert drawn.shape == (18 + 4, 8, 8)
    assert np.array_equal(drawn[17], stack[2, 8:, 16:])
    assert np.array_equal(drawn[-1], 255 * np.eye(8))
    Image.fromarray(np.ones((16, 16), np.uint16)).save("deep.png")
    line = fails("learn", image, "deep.png")
    assert "image.png holds uint8 and deep.png uint16; learn from images of one type" in line


@pytest.mark.parametrize(("tol", "best"), [(None, 2), (0.5, 3)])
def test_the_errors_are_those_of_the_last_of_equally_good_dictionaries(tol, best):
    history = {"rmse": [3, 1, 1, 2], "mean_nonzeros": [4, 3, 2, 2]}
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
    assert thin["rmse"] == pytest.approx([numbers[i] for i in thin["iteration"]], rel=1e-4)
    assert history_in({"history": thin}) == thin


@pytest.mark.parametrize("colour", [False, True])
def test_convolutional_filters_are_learned_and_shown(tmp_path, colour):
    photo, output, picture = (tmp_path / name for name in ("a.png", "filters", "filters.png"))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 30, 3), np.uint8)).save(photo)
    options = ["--patch", 5, "--atoms", 2, "--penalty", 0.2, "--max-iter", 2, "--seed", 0]
    options += ["--colour", "--structure", "dense"] if colour else []
    # Defaults of options for patches do no harm.
    given = ["learn", "--convolutional", photo, "-o", output, *options, "--device", "cpu"]
    record = record_of(*given)
    d = kl.convolutional.load_filters(output)
    axis = -1 if colour else None
    pixels = np.asarray(Image.open(photo), np.float32)
    pixels = (pixels if colour else luminance(read_picture(photo))) / np.float32(255)
    details = pixels - kl.convolutional.lowpass(pixels, channel_axis=axis)
    same = {"penalty": 0.2, "max_iter": 2, "random_state": 0, "channel_axis": axis}
    sizes = (2, (5, 5), "dense") if colour else ((2, 2), (5, 5))
    expected = kl.convolutional.SeparableConvolutionalLearning(*sizes, **same).fit([details])
    np.testing.assert_array_equal(d.filters, expected.filters_)
    assert (record["filters"], record["iterations"]) == (d.n_filters, 2) == (2 if colour else 4, 2)
    assert d.filter_shape == ((3, 5, 5) if colour else (5, 5))
    assert len(record["history"]["objective"]) == 3
    text = succeeds("show", output, "--picture", picture).stdout
    assert re.search(rf"^structure +{d.structure} *$", text, re.MULTILINE)
    assert picture.read_bytes().startswith(PNG)
    assert "--tol is for patches" in fails(*given, "-f", "--tol", 3)
    assert "--penalty is for filters" in fails("learn", photo, "--penalty", 1)


def test_files_are_replaced_only_on_request_and_inputs_never(patches, model):
    before = model.read_bytes(), patches.read_bytes()
    options = ["learn", patches, "--max-iter", 1, "-q"]
    # The default name is taken, too.
    for line in (fails(*options), fails(*options, "-o", model)):
        assert "model.safetensors already exists; give another name, or --overwrite" in line
    for option in ("--output", "--checkpoint"):
        line = fails(*options, option, patches, "--overwrite")
        assert "would overwrite the input" in line
    assert (model.read_bytes(), patches.read_bytes()) == before
    succeeds(*options, "--overwrite")
    assert model.read_bytes() != before[0]


def test_learning_resumes_from_a_checkpoint(patches):
    def learned(n, *options):
        succeeds("learn", patches, "-f", "-s", 3, "--seed", 1, "-q", "--max-iter", n, *options)
        return kl.load_dictionary("model.safetensors")

    whole = learned(8)
    learned(4, "--checkpoint", "state")
    assert learned(8, "--checkpoint", "state") == whole


@pytest.mark.parametrize("arguments", [["patches.npy"], ["image.png", "--convolutional"]])
def test_an_interrupt_saves_what_was_learned_so_far(patches, image, monkeypatch, arguments):
    def advance(note=""):
        # Reading images gives no error to note.
        passes.extend([note] * bool(note))
        if len(passes) == 3:
            raise KeyboardInterrupt

    passes = []
    monkeypatch.setattr(Output, "progress", lambda *_: nullcontext(advance))
    assert fails("learn", *arguments, "-o", "out", "-q", code=130) == "Interrupted."
    info = read_file("out", kind_of("out"))[1]
    assert (info["stop_reason"], info["iterations"] in (2, 3)) == ("interrupted", True)


def test_an_interrupt_before_the_first_pass_saves_nothing(tmp_path, patches, monkeypatch):
    def interrupted(self, samples):
        raise KeyboardInterrupt

    monkeypatch.setattr(kl.KroneckerDictionaryLearning, "fit", interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run("learn", patches, "-o", "out", "--json")
    note = "Note: No iteration had ended, so nothing was saved."
    assert (result.exit_code, result.stderr) == (130, f"{note}\nInterrupted.\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--patch", "5x5"], "has shape (200, 4, 6); samples of shape (5, 5) are needed"),
        (["--stride", "2"], "--stride is for images"),
        (["--samples", "2"], "--samples is for images"),
        (["--colour"], "--colour is for images"),
        (["--structure", "orthonormal", "--atoms", "5x7"], "orthonormal"),
        (["--structure", "orthonormal", "--terms", "2"], "--terms 2 needs --structure general"),
        (["-o", "."], "--output . is a folder"),
        (["-o", "no/where/model"], "the folder no/where does not exist"),
        (["image.png"], "give one array, or one or more images"),
    ],
)
def test_bad_options_are_refused(patches, image, arguments, message):
    assert message in fails("learn", patches, *arguments)


def test_bad_inputs_are_refused(tmp_path, image):
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
        assert message in fails("learn", name, "-o", "out")
    for options, message in {
        ("--patch", "2x2x2"): "has 3 sizes; images need two",
        ("--patch", "8x30000"): "do not fit in image.png, an image of 40 × 24",
        (image, "--samples", "1"): "--samples 1 is less than one for each of 2",
    }.items():
        assert message in fails("learn", image, *options, "-o", "out")
    assert not (tmp_path / "out").exists()


# show


def test_show_prints_the_facts(model, patches):
    text = succeeds("show", model).stdout
    assert "4 × 6" in text
    assert "4 × 3" in text
    record = record_of("show", model)
    assert (record["patch_shape"], record["n_terms"]) == ([4, 6], 1)
    assert record["is_orthonormal"] is True
    assert record["coherence"] == [0, 0]
    succeeds("learn", patches, "-o", "sum", "--terms", 2, "-s", 3, "--max-iter", 2, "-q")
    text = succeeds("show", "sum").stdout
    assert re.search(r"^terms +2 *$", text, re.MULTILINE)
    assert re.search(r"^atoms used +\d+, by 200 patches *$", text, re.MULTILINE)
    # The shares of the columns in the nonzeros; those of the 12 columns of D_2 make 100 %.
    low, high = map(float, re.search(r"D_2 ([\d.]+) to ([\d.]+) %", text).groups())
    assert 12 * low <= 100 <= 12 * high
    assert "history" not in text
    record = record_of("show", "sum")
    assert record["n_terms"] == record["info"]["n_terms"] == 2
    atoms = kl.load_dictionary("sum").to_dense()
    gram = np.abs(atoms.T @ atoms)
    np.fill_diagonal(gram, 0)
    assert record["coherence"] == [pytest.approx(gram.max(), rel=1e-5)]


def test_show_draws_the_atoms_and_the_convergence(tmp_path, patches, model):
    curve, picture = tmp_path / "curve.png", tmp_path / "picture.png"
    succeeds("learn", patches, "-o", "learned", "-s", 3, "--max-iter", 1, "-q")
    picture.write_text("mine")
    options = ["--convergence", curve, "--picture", picture]
    assert "picture.png already exists" in fails("show", "learned", *options)
    assert "would overwrite the input" in fails("show", model, "--picture", model, "-f")
    assert "notapicture" in fails("show", model, "--picture", "a.notapicture")
    assert "has no history of learning" in fails("show", model, "--convergence", "other.png")
    assert (picture.read_text(), curve.exists()) == ("mine", False)
    assert succeeds("show", "learned", *options, "--overwrite", "-q").output == ""
    assert picture.read_bytes().startswith(PNG)
    assert curve.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "info",
    [
        {"history": {"rmse": [1, 2]}, "usage": {"samples": 3}},
        {"history": {"iteration": [1], "rmse": ["x"], "mean_nonzeros": [1], "seconds": [1]}},
        {"history": "none", "usage": "none"},
        {"usage": {"samples": 1, "atoms": 2, "columns": [["x"], 3, [0, 0]]}},
        {"history": dict.fromkeys(("iteration", "rmse", "mean_nonzeros", "seconds"), 1)},
    ],
)
def test_show_tolerates_any_info_in_a_model_file(model, info):
    save_dictionary(kl.load_dictionary(model), model, info=info)
    succeeds("show", model)
    assert "has no history" in fails("show", model, "--convergence", "curve.png")


def test_show_prints_no_control_characters_or_markup(model):
    info = {"note": "\x1b]0;title\x07 [red]x[/red]", "long": "y" * 1000, "missing": None}
    # The sizes are those of the dictionary, whatever the file says.
    save_dictionary(kl.load_dictionary(model), model, info=info | {"patch_shape": [9, 9]})
    text = succeeds("show", model).stdout
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
    assert "missing" not in text
    assert "y" * 201 not in text
    assert re.search(r"^patch shape +4 × 6 *$", text, re.MULTILINE)
    # An error names a file as it is called, but harmlessly.
    assert "\x1b" not in fails("show", "\x1b]0;title\x07")


def test_show_refuses_files_that_are_not_models(tmp_path, patches):
    assert fails("show", tmp_path / "nothing").endswith("nothing does not exist.")
    assert "is not a safetensors file" in fails("show", patches)
    assert "is not a regular file" in fails("show", tmp_path)


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
    added = r"Noise of 20 grey levels added to a part of camera \(128 × 128 pixels\)"
    before, after = re.search(rf"{added}.*: ([\d.]+) dB → ([\d.]+)", text).groups()
    assert float(before) == pytest.approx(22.1, abs=0.3)
    assert float(after) > float(before) + 8
