"""The commands for images: what they read, write, refuse and print."""

import io
import re
import warnings
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

import kronlearn as kl
from command_line import fails, record_of, run, succeeds
from kronlearn.cli.scores import image_scores
from kronlearn.core.init import dct_factor
from kronlearn.io.images import Picture, check_writable, luminance, read_picture, write_picture
from kronlearn.io.model_files import read_file

PNG = b"\x89PNG\r\n\x1a\n"
pytestmark = pytest.mark.usefixtures("empty_folder")

FAST = ["--patch", "4x4", "--atoms", "6x6", "-q"]


def scene(rows=48, columns=40, top=255.0):
    """A picture with edges and a slope, values from 0 to top."""
    y, x = np.mgrid[:rows, :columns]
    stripes = ((x + 2 * y) // 9 % 2) * 0.5
    return top * (0.2 + 0.3 * x / columns + stripes * (y > rows / 3))


def image_of(dtype, shape=(48, 40), colour=False, pages=None):
    """An image of a type: gray or colour, one or a stack."""
    dtype = np.dtype(dtype)
    top = {"b": 1.0, "f": 1.0}.get(dtype.kind) or float(np.iinfo(dtype).max)
    image = scene(*shape, top=top)
    if pages is not None:
        image = np.stack([np.roll(image, page, axis=1) for page in range(pages)])
    if colour:
        image = np.stack([image, 0.7 * image, 0.9 * np.flip(image, -1)], axis=-1)
    return image > 0.5 if dtype.kind == "b" else image.astype(dtype)


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(image_of("uint8")).save(path)
    return path


# Reading


PICTURES = [
    Picture(image_of("bool")),
    Picture(image_of("uint8")),
    Picture(image_of("uint16")),
    Picture(image_of("int32")),
    Picture(image_of("float32")),
    Picture(image_of("float64")),
    Picture(image_of("uint8", colour=True), True),
    Picture(image_of("uint16", colour=True), True),
    Picture(image_of("float32", colour=True), True),
    Picture(image_of("uint8"), alpha=image_of("uint8")[::-1]),
    Picture(image_of("uint16"), alpha=image_of("uint16")[::-1]),
    Picture(image_of("uint8", colour=True), True, alpha=image_of("uint8")[::-1]),
    Picture(image_of("uint16", colour=True), True, alpha=image_of("uint16")[::-1]),
    Picture(image_of("uint8"), icc=b"a profile"),
    Picture(image_of("uint16", colour=True), True, icc=b"a profile"),
    Picture(image_of("uint16", pages=3)),
    Picture(image_of("uint8", pages=3, colour=True), True),
    Picture(np.stack([image_of("uint16")] * 5, axis=-1), True),
]


def refusal(path, picture):
    try:
        check_writable(path, picture)
    except ValueError as problem:
        return str(problem)
    return None


@pytest.mark.parametrize("ending", [".png", ".tif", ".npy", ".bmp", ".webp"])
@pytest.mark.parametrize("picture", PICTURES, ids=str)
def test_what_is_written_is_read_back_if_the_format_can_hold_it(tmp_path, picture, ending):
    path = tmp_path / ("image" + ending)
    if refusal(path, picture):
        assert "cannot hold" in refusal(path, picture)
        return
    write_picture(path, picture, overwrite=False)
    found = read_picture(path)
    if ending == ".webp" and not picture.has_channels:
        # This format has no gray.
        assert np.array_equal(found.pixels[..., 0], picture.pixels)
        return
    if ending == ".npy" and picture.n_channels == 5:
        assert np.array_equal(found.pixels, picture.pixels)
        return
    assert found.pixels.dtype == picture.pixels.dtype
    assert np.array_equal(found.pixels, picture.pixels)
    assert found.has_channels == picture.has_channels
    if picture.alpha is not None and ending in (".png", ".tif", ".webp"):
        assert np.array_equal(found.alpha, picture.alpha)
    if ending in (".png", ".tif", ".webp"):
        assert found.icc == picture.icc


def test_palettes_become_gray_or_rgb():
    indices = (np.arange(48 * 40) % 7).astype(np.uint8).reshape(48, 40)
    for palette in (
        [[20 * i] * 3 for i in range(7)],
        [[20 * i, 255 - 20 * i, i] for i in range(7)],
    ):
        image = Image.fromarray(indices)
        image.putpalette(np.ravel(palette).tolist())
        is_gray = palette[1][0] == palette[1][1]
        expected = np.array(palette, np.uint8)[indices]
        for ending in (".png", ".gif", ".tif"):
            image.save(f"image{ending}")
            found = read_picture(Path(f"image{ending}"))
            assert found.has_channels != is_gray
            assert np.array_equal(found.pixels, expected[..., 0] if is_gray else expected)
        image.save("see-through.png", transparency=2)
        alpha = read_picture(Path("see-through.png")).alpha
        assert np.array_equal(alpha, np.where(indices == 2, 0, 255))


def test_the_content_of_a_file_determines_its_format():
    heights, gray = image_of("float32"), image_of("uint8")
    tifffile.imwrite("dem.png", heights)
    np.save("heights.npy", heights)
    Path("heights.npy").rename("heights")
    for name in ("dem.png", "heights"):
        np.testing.assert_array_equal(read_picture(Path(name)).pixels, heights)
    # A camera marked it as turned.
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(gray).save("turned.png", exif=exif)
    assert np.array_equal(read_picture(Path("turned.png")).pixels, np.rot90(gray, -1))


def test_tiff_files_of_other_programs_are_read(tmp_path):
    gray, colour = image_of("uint8"), image_of("uint16", colour=True)
    path = tmp_path / "image.tif"
    tifffile.imwrite(path, 255 - gray, photometric="miniswhite")
    assert np.array_equal(read_picture(path).pixels, gray)
    planes = np.moveaxis(colour, -1, 0)
    tifffile.imwrite(path, planes, photometric="rgb", planarconfig="separate")
    assert np.array_equal(read_picture(path).pixels, colour)
    for compression in ("tiff_lzw", "packbits", "tiff_deflate"):
        Image.fromarray(gray).save(path, compression=compression)
        assert np.array_equal(read_picture(path).pixels, gray)
    Image.fromarray(gray > 99).save(path, compression="group4")
    assert np.array_equal(read_picture(path).pixels, gray > 99)
    small = Image.fromarray(gray[:9, :9])
    Image.fromarray(gray).save(path, save_all=True, append_images=[small])
    found = read_picture(path)
    assert np.array_equal(found.pixels, gray)
    assert "2 images of different sizes" in found.notes[0]
    tifffile.imwrite(path, image_of("float32", pages=4), photometric="minisblack")
    assert "4 pages, read as one stack" in read_picture(path).notes[0]


def test_colours_become_luminance_and_transparency_is_dropped(tmp_path):
    rgba = np.zeros((6, 5, 4), np.uint8)
    rgba[..., 1], rgba[..., 3] = 100, 7
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    gray = luminance(read_picture(tmp_path / "rgba.png"))
    assert gray.dtype == np.float32
    assert np.allclose(gray, 71.54)


def test_damaged_files_are_refused_by_name(tmp_path, photo):
    for name in ("text.png", "text.tif", "text.npy"):
        Path(name).write_text("not an image")
    Path("empty.jpg").touch()
    write_picture(Path("deep-whole.png"), Picture(image_of("uint16", colour=True), True), False)
    tifffile.imwrite("whole.tif", image_of("uint16"))
    np.save("whole.npy", image_of("float32"))
    for name in ("photo.png", "deep-whole.png", "whole.tif", "whole.npy"):
        whole = Path(name).read_bytes()
        Path("cut-" + name).write_bytes(whole[: len(whole) // 2])
    np.save("objects.npy", np.array([[None]], dtype=object), allow_pickle=True)
    np.save("complex.npy", np.ones((5, 4), complex))
    np.save("line.npy", np.ones(5))
    np.save("nothing.npy", np.ones((0, 5)))
    frames = [Image.fromarray(image_of("uint8")), Image.fromarray(image_of("uint8")[::-1])]
    frames[0].save("film.gif", save_all=True, append_images=frames[1:])
    unreadable = ["text.png", "text.tif", "text.npy", "empty.jpg", "objects.npy"]
    unreadable += [path.name for path in tmp_path.glob("cut-*")]
    for name, message in {
        **dict.fromkeys(unreadable, "cannot be read as an image"),
        "missing.png": "does not exist",
        "complex.npy": "has dtype complex128; give real numbers",
        "line.npy": "shape (5,), not an image",
        "nothing.npy": "shape (0, 5), not an image",
        "film.gif": "it has 2 frames",
        ".": "is a folder",
    }.items():
        line = fails("denoise", name, "out.tif")
        assert f"{name} " in line
        assert message in line
    assert not Path("out.tif").exists()


# Denoising


@pytest.mark.parametrize("picture", [p for p in PICTURES if p.n_channels < 5], ids=str)
def test_denoising_keeps_type_shape_and_alpha(tmp_path, picture):
    write_picture(tmp_path / "in.tif", picture, False)
    patch = ["--patch", "2x4x4", "--atoms", "2x6x6"] if len(picture.shape) == 3 else FAST[:4]
    succeeds("denoise", "in.tif", "out.tif", "--sigma", 0.1 * picture.pixels.max(), *patch, "-q")
    found = read_picture(tmp_path / "out.tif")
    assert found.pixels.dtype == picture.pixels.dtype
    assert found.pixels.shape == picture.pixels.shape
    assert (found.alpha is None) == (picture.alpha is None)
    if picture.alpha is not None:
        assert np.array_equal(found.alpha, picture.alpha)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ([], {}),
        (["--quality", "fast", "--gain", "1.2"], {"quality": "fast", "gain": 1.2}),
        (["--quality", "dictionary", "--seed", "1"], {"quality": "dictionary", "random_state": 1}),
    ],
    ids=str,
)
def test_the_command_denoises_as_the_function_does(photo, options, same):
    record = record_of("denoise", photo, "out.png", "--sigma", 9, *options, *FAST[:4])
    assert record["settings"]["quality"] == same.get("quality", "default")
    expected = kl.images.denoise(image_of("uint8"), 9, patch_size=(4, 4), n_atoms=(6, 6), **same)
    assert np.array_equal(read_picture(Path("out.png")).pixels, expected)


def test_added_noise_is_removed_and_reported(tmp_path, photo):
    options = ["--add-noise", 20, "--seed", 3, *FAST[:4]]
    record = record_of("denoise", photo, "out.png", *options)
    before, after = (record["scores"][name] for name in ("before", "after"))
    assert before["psnr"] == pytest.approx(20 * np.log10(255 / 20), abs=0.5)
    assert after["psnr"] > before["psnr"] + 3
    assert after["ssim"] > before["ssim"]
    assert record["sigma"] == pytest.approx(20, rel=0.3)
    assert record["sigma_estimated"] is True
    assert record["added_noise"] == 20
    assert not [key for key in {**record, **record["seconds"]} if " " in key]
    out = read_picture(tmp_path / "out.png").pixels
    clean = image_of("uint8")
    assert after["psnr"] == pytest.approx(peak_signal_noise_ratio(clean, out))
    assert after["ssim"] == pytest.approx(structural_similarity(clean, out))
    text = succeeds("denoise", photo, "again.png", *options).stdout
    assert "estimated from the image; 20 was added" in text
    assert f"{before['psnr']:.2f} dB → {after['psnr']:.2f} dB" in text
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "out.png").read_bytes()


def test_a_reference_is_compared_with(tmp_path, photo, rng):
    noisy = np.clip(image_of("uint8") + rng.normal(0, 20, (48, 40)), 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save("noisy.png")
    record = record_of("denoise", "noisy.png", "out.png", "--clean", photo, *FAST[:4])
    expected = peak_signal_noise_ratio(image_of("uint8"), noisy)
    assert record["scores"]["before"]["psnr"] == pytest.approx(expected)
    # JSON has no infinity.
    equal = record_of("denoise", photo, "same.png", "--clean", photo, "--sigma", 0)
    assert equal["scores"]["after"] == {"psnr": None, "ssim": 1}
    Image.fromarray(image_of("uint8", (48, 41))).save("wide.png")
    line = fails("denoise", "noisy.png", "new.png", "--clean", "wide.png", *FAST)
    assert (
        "--clean wide.png is 48 × 41 grey uint8; it must have the same size as the image, 48 × 40"
        in line
    )


def test_poisson_noise_is_removed(tmp_path, rng):
    np.save(tmp_path / "counts.npy", rng.poisson(scene() / 20).astype(np.float32))
    record = record_of("denoise", "counts.npy", "out.npy", "--noise", "poisson", *FAST)
    assert record["noise"] == "poisson"
    assert 0.5 < record["noise_gain"] < 1.5
    assert error_of(tmp_path, "out.npy") < 0.7 * error_of(tmp_path, "counts.npy")
    line = fails("denoise", "counts.npy", "out2.npy", "--noise", "poisson", "--noise-gain", "-1")
    assert "--noise-gain -1.0 is not a positive number" in line


def error_of(folder, name):
    """Of an image of a twentieth of the scene."""
    return np.std(np.load(folder / name) - scene() / 20)


def test_a_dictionary_is_saved_and_used(photo):
    given = ["--dictionary", "d.safetensors"]
    further = [0.3 * np.random.default_rng(0).standard_normal((4, 6)) for _ in range(2)]
    kl.KroneckerSumDictionary([[dct_factor(4, 6)] * 2, further]).save("sum.safetensors")
    succeeds("denoise", photo, "one.png", "--sigma", 9, "--save-dictionary", given[1], *FAST)
    assert kl.load_dictionary("d.safetensors").n_atoms == (6, 6)
    assert read_file("d.safetensors", "dictionary")[1]["history"]["rmse"]
    for name in ("d.safetensors", "sum.safetensors"):
        options = ["--dictionary", name, "--report", "page.html", "-q", "-f"]
        succeeds("denoise", photo, "two.png", "--sigma", 9, *options)
        d = kl.load_dictionary(name)
        expected = kl.images.denoise(image_of("uint8"), 9, dictionary=d)
        assert np.array_equal(read_picture(Path("two.png")).pixels, expected)
    assert "4 × 4 patches, 6 × 6 atoms, 2 terms" in Path("page.html").read_text("utf-8")
    saved = ["--dictionary", "sum.safetensors", "--save-dictionary", "again.safetensors"]
    record = record_of("inpaint", photo, "o.png", "--drop", 0.3, *saved)
    assert record["settings"]["n_terms"] == 2
    assert kl.load_dictionary("again.safetensors") == d
    line = fails("denoise", photo, "three.png", *given, *FAST)
    assert "--dictionary determines --patch; leave --patch out" in line
    line = fails("denoise", photo, "three.png", "--dictionary", "no.safetensors")
    assert "no.safetensors does not exist" in line


def test_a_dictionary_for_colours_restores_images_in_colour(tmp_path, photo):
    options = ("--dictionary", "rgb.safetensors")
    pixels = image_of("uint8", colour=True)
    Image.fromarray(pixels).save("colours.png")
    succeeds("learn", "colours.png", "--colour", "-o", options[1], "--max-iter", 2, "-q")
    record = record_of("denoise", "colours.png", "o.png", "--sigma", "5,6,7", *FAST[:4])
    assert record["sigma"] == [5, 6, 7]
    succeeds("denoise", "colours.png", "denoised.png", "--sigma", 9, *options, "-q")
    dictionary = kl.load_dictionary(options[1])
    expected = kl.images.denoise(pixels, 9, channel_axis=-1, dictionary=dictionary)
    assert np.array_equal(read_picture(tmp_path / "denoised.png").pixels, expected)
    line = fails("denoise", photo, "out.png", *options)
    assert "rgb.safetensors is for RGB images, with patches of 8 × 8 × 3;" in line
    assert "photo.png is grey" in line


def test_several_images_go_to_a_folder(tmp_path, photo):
    (tmp_path / "done").mkdir()
    Image.fromarray(image_of("uint8")[::-1]).save("other.png")
    options = ["--sigma", 9, *FAST[:4]]
    record = record_of("denoise", photo, "other.png", "done", *options)
    assert [entry["output"] for entry in record["images"]] == ["done/photo.png", "done/other.png"]
    assert all((tmp_path / "done" / name).is_file() for name in ("photo.png", "other.png"))
    succeeds("denoise", photo, "other.png", "done", "--overwrite", *options)
    assert "OUT must be a folder for 2 images; new.png is not" in fails(
        "denoise", photo, "other.png", "new.png"
    )
    assert "--report works with one image only" in fails(
        "denoise", photo, "other.png", "new", "--report", "r.html"
    )
    assert not Path("new").exists()
    assert "Two inputs are named photo.png" in fails("denoise", photo, photo, "done")
    # One that fails does not keep the others from being restored, in a folder that is new.
    Path("broken.png").write_text("no image")
    lines = run("denoise", "broken.png", photo, "new", *options).stderr.splitlines()
    assert "broken.png cannot be read as an image" in lines[0]
    assert lines[1] == "Error: 1 of 2 images could not be restored."
    assert [path.name for path in Path("new").iterdir()] == ["photo.png"]
    # One image goes there, too, if the name ends in a slash: a pattern may match just one.
    succeeds("denoise", photo, "newer/", *options)
    assert [path.name for path in Path("newer").iterdir()] == ["photo.png"]
    assert "OUT other.png/ is a file" in fails("denoise", photo, "other.png/", "--overwrite")
    (tmp_path / "done" / "other.png").unlink()
    assert "photo.png already exists" in fails("denoise", photo, "other.png", "done")
    assert not (tmp_path / "done" / "other.png").exists()


@pytest.mark.parametrize("ending", [".png", ".tif", ".npy", ".bmp"])
def test_images_pass_through_pipes(tmp_path, photo, ending):
    write_picture(tmp_path / f"in{ending}", read_picture(photo), overwrite=False)
    data = (tmp_path / f"in{ending}").read_bytes()
    result = succeeds("denoise", "-", "-", "--quality", "fast", input=data)
    succeeds("denoise", photo, "out.png", "--quality", "fast")
    with Image.open(io.BytesIO(result.stdout_bytes)) as piped, Image.open("out.png") as written:
        assert piped.format == "PNG"
        np.testing.assert_array_equal(piped, written)
    assert "noise level" in result.stderr


def test_standard_input_must_be_an_image():
    line = fails("denoise", "-", "out.png", input=b"no image")
    assert line.startswith("Error: standard input cannot be read as an image")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "photo.png o.png --sigma loud",
            "--sigma: 'loud' is not a noise level; give a number, 0 or",
        ),
        ("photo.png o.png --sigma -1", "--sigma: '-1' is not a noise level"),
        ("photo.png o.png --sigma nan", "'nan' is not a noise level"),
        ("photo.png o.png --sigma 1,2", "photo.png: --sigma has 2 numbers for 1 channel;"),
        ("photo.png o.png --noise salt", "'gaussian', 'poisson', 'poisson-gaussian', 'rician'"),
        ("photo.png o.png --report .", "--report . is a folder"),
        ("photo.png o.png --report no/r.html", "the folder no does not exist"),
        ("photo.png o.png --comparison c.spoon", "c.spoon needs the extension of a picture format"),
        ("photo.png o.png --add-noise -3", "--add-noise: '-3' is not a noise level"),
        ("photo.png o.png --add-noise 3 --clean photo.png", "leave --clean out"),
        ("photo.png o.docx", "does not have an extension that kronlearn can write: .png, .tif"),
        ("photo.png o", "does not have an extension"),
        ("uint16.npy o.jpg", "JPEG cannot hold 48 × 40 grey uint16; use .png"),
        ("float32.npy o.png", "PNG cannot hold 48 × 40 grey float32; use .tif"),
        ("float32.npy -", "PNG cannot hold 48 × 40 grey float32"),
        ("photo.png - --json", "OUT - and --json both write to standard output"),
        ("photo.png photo.png -", "OUT must be a folder for 2 images; - is not"),
        ("photo.png", "Error: Both IN and OUT are needed. Usage: "),
        ("photo.png", "denoise [OPTIONS] IN... OUT"),
    ],
)
def test_invalid_options_are_refused_before_the_work(photo, monkeypatch, arguments, message):
    monkeypatch.setattr(kl.images, "denoise", lambda *_, **__: pytest.fail("denoising started"))
    for dtype in ("uint16", "float32"):
        np.save(f"{dtype}.npy", image_of(dtype))
    assert message in fails("denoise", *arguments.split())


# Nothing is overwritten unless asked for


def test_existing_files_are_replaced_only_on_request(photo):
    names = {"--report": "r.html", "--comparison": "c.png", "--save-dictionary": "d"}
    arguments = ["denoise", photo, "o.png", "--sigma", 9, *FAST]
    for option, name in {None: "o.png", **names}.items():
        Path(name).write_text("mine")
        options = [] if option is None else [option, name]
        assert f"{name} already exists" in fails(*arguments, *options)
        if option is None:
            Path("o.png").unlink()
    assert not Path("o.png").exists()
    assert all(Path(name).read_text() == "mine" for name in names.values())
    succeeds(*arguments, *chain(*names.items()), "--overwrite")
    assert Path("c.png").read_bytes().startswith(PNG)
    assert not [name for name in names.values() if Path(name).read_bytes() == b"mine"]


def test_an_input_is_never_overwritten(photo):
    kl.KroneckerDictionary([np.eye(4), np.eye(4)]).save("d")
    before = photo.read_bytes()
    for options in (
        [photo],
        ["o.png", "--report", photo],
        ["o.png", "--clean", "o.png"],
        ["o.png", "--report", "o.png"],
        ["o.png", "--dictionary", "d", "--save-dictionary", "d"],
    ):
        assert "would overwrite" in fails("denoise", photo, *options, "--overwrite")
    assert "would overwrite" in fails("inpaint", photo, "m.png", "--mask", "m.png", "-f")
    assert photo.read_bytes() == before


def test_a_failure_leaves_nothing_behind(tmp_path, photo, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr("PIL.Image.Image.save", fail)
    line = fails("denoise", photo, "out.png", "--sigma", 0, code=1)
    assert "out.png could not be written: the disk is full" in line
    assert [path.name for path in tmp_path.iterdir()] == ["photo.png"]


def test_a_file_that_appears_during_the_work_is_kept(photo, monkeypatch):
    work = kl.images.denoise

    def slow(*arguments, **options):
        Path("out.png").write_text("of another program")
        return work(*arguments, **options)

    monkeypatch.setattr(kl.images, "denoise", slow)
    assert "was not replaced" in fails("denoise", photo, "out.png", "--sigma", 0)
    assert Path("out.png").read_text() == "of another program"


# Georeferenced images


def test_a_georeference_is_kept_and_nodata_pixels_are_not_denoised(tmp_path):
    heights = image_of("float32")
    heights[5:9, 5:9] = -9999
    # Pixels of 10 m, where the first one lies, UTM zone 33, and GDAL's value for missing data.
    tags = {
        33550: ("d", 3, (10.0, 10.0, 0.0)),
        33922: ("d", 6, (0.0, 0.0, 0.0, 5e5, 5e6, 0.0)),
        34735: ("H", 8, (1, 1, 0, 1, 3072, 0, 1, 32633)),
        42113: ("s", 0, "-9999"),
    }
    extra = [(code, *tag, True) for code, tag in tags.items()]
    tifffile.imwrite("dem.tif", heights, extratags=extra, metadata=None)
    line = fails("denoise", "dem.tif", "out.tif")
    assert "dem.tif: the image has 16 pixels without data (nodata -9999)" in line
    assert "kronlearn cube denoise skips them" in line
    Image.fromarray((heights == -9999).astype(np.uint8)).save("mask.png")
    succeeds("denoise", "dem.tif", "masked.tif", "--mask", "mask.png", *FAST)
    succeeds("inpaint", "dem.tif", "filled.tif", "--missing", -9999, *FAST)
    succeeds("denoise", "filled.tif", "out.tif", *FAST)
    for name in ("masked.tif", "filled.tif", "out.tif"):
        with tifffile.TiffFile(name) as file:
            found = {code: file.pages[0].tags[code].value for code in tags}
            assert found == {code: value for code, (_, _, value) in tags.items()}
            assert file.asarray().min() > -1
    text = succeeds("denoise", "filled.tif", "out.npy", *FAST[:-1]).stdout
    assert "NumPy cannot hold the georeference; out.npy will have none." in text


# Missing pixels


def test_missing_pixels_are_filled_in_before_noise_is_removed(photo):
    holes = np.zeros((48, 40), np.uint8)
    holes[10:14, 5:30] = 255
    Image.fromarray(holes).save("mask.png")
    options = ["--mask", "mask.png", "--sigma", 9, *FAST[:4], "--clean", photo]
    record = record_of("denoise", photo, "out.png", *options)
    sizes = {"patch_size": (4, 4), "n_atoms": (6, 6)}
    expected = kl.images.denoise(image_of("uint8"), 9, mask=holes != 0, **sizes)
    assert np.array_equal(read_picture(Path("out.png")).pixels, expected)
    assert record["missing"] == holes.astype(bool).mean()
    assert list(record["scores"]) == ["after"]
    assert "would overwrite the input" in fails("denoise", photo, "mask.png", *options, "-f")


def test_a_mask_marks_missing_pixels():
    mask = np.zeros((48, 40), np.uint8)
    mask[10:14, 5:30], mask[30, :] = 1, 255
    alpha = np.where(mask, 0, 200).astype(np.uint8)
    write_picture(Path("in.png"), Picture(image_of("uint8"), alpha=alpha), False)
    # A mask in colour means the same.
    for name, pixels in {"mask": mask, "colour": np.stack([0 * mask, mask, mask], axis=-1)}.items():
        Image.fromarray(pixels).save(f"{name}.png")
        options = ["--mask", f"{name}.png", *FAST[:4], "-f"]
        record = record_of("inpaint", "in.png", "out.png", *options)
        assert record["missing"] == pytest.approx(140 / 1920)
        out = read_picture(Path("out.png"))
        assert np.array_equal(out.pixels[mask == 0], image_of("uint8")[mask == 0])
        sizes = {"patch_size": (4, 4), "n_atoms": (6, 6)}
        expected = kl.images.inpaint(image_of("uint8"), mask != 0, **sizes)
        assert np.array_equal(out.pixels, expected)
        # What is filled in is opaque.
        assert (out.alpha == 200).all()


def test_a_mask_with_blurred_edges_is_used_with_a_note(photo):
    mask = np.zeros((48, 40), np.uint8)
    mask[10:14, 5:30] = 255
    Image.fromarray(mask).save("mask.jpg", quality=50)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = succeeds("inpaint", photo, "out.png", "--mask", "mask.jpg", *FAST[:4], "--json")
    assert re.search(r"Note: --mask mask\.jpg has \d+ different values", result.stderr)


@pytest.mark.parametrize("source", ["none.png", "folder"])
def test_no_folder_is_made_for_images_that_cannot_be_read(tmp_path, source):
    (tmp_path / "folder").mkdir()
    reason = "is a folder; give the names" if source == "folder" else "does not exist"
    assert reason in fails("denoise", source, "new/")
    assert not (tmp_path / "new").exists()


def test_a_value_or_nan_marks_missing_pixels(tmp_path):
    image = image_of("float32", colour=True)
    image[4:7, 8:20] = image[30, 5, 1] = np.nan
    np.save("holes.npy", image)
    succeeds("inpaint", "holes.npy", "nan.npy", *FAST)
    whole = np.load("nan.npy")
    assert np.isfinite(whole).all()
    known = np.isfinite(image).all(axis=-1)
    assert np.array_equal(whole[known], image[known])
    image[4:7, 8:20] = image[30, 5] = -1
    # The value marks a pixel only if all its channels have it.
    image[20, 20, 1] = -1
    np.save("marked.npy", image)
    succeeds("inpaint", "marked.npy", "value.npy", "--missing", -1, *FAST)
    filled = np.load("value.npy")
    assert (filled < -0.5).sum() == 1
    assert filled[20, 20, 1] == -1


def test_dropped_pixels_are_filled_in_and_scored(tmp_path, photo):
    options = ["--drop", 0.3, "--comparison", "c.png", *FAST[:4]]
    record = record_of("inpaint", photo, "out.png", *options)
    assert record["missing"] == pytest.approx(0.3, abs=0.05)
    assert record["scores"]["after"]["psnr"] > 15
    assert "before" not in record["scores"]
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Say which pixels are missing: --mask FILE, --missing VALUE"),
        (["--mask", "m.png", "--drop", "0.5"], "--mask and --drop each say"),
        (["--drop", "1"], "--drop 1 is not between 0 and 1"),
        (["--missing", "77.5"], "No pixel is missing"),
        (["--mask", "wide.png"], "--mask wide.png is 9 × 9 grey uint8; it must be as large"),
        (["--mask", "none.png"], "none.png does not exist"),
        (["--mask", "all.png"], "Every pixel is missing"),
    ],
)
def test_bad_masks_are_refused(photo, options, message):
    Image.fromarray(np.ones((9, 9), np.uint8)).save("wide.png")
    Image.fromarray(np.ones((48, 40), np.uint8)).save("all.png")
    assert message in fails("inpaint", photo, "out.png", *options)


# Scores


def test_scores_take_their_range_from_the_type():
    for dtype, span in {"uint8": 255, "uint16": 65535, "float32": None}.items():
        reference = image_of(dtype)
        span = span or float(np.ptp(reference))
        other = (reference * 0.9).astype(dtype)
        found = image_scores(Picture(reference), other)
        wide, narrow = reference.astype(float), other.astype(float)
        expected = peak_signal_noise_ratio(wide, narrow, data_range=span)
        assert found["psnr"] == pytest.approx(expected)
        expected = structural_similarity(wide, narrow, data_range=span)
        assert found["ssim"] == pytest.approx(expected)
    # Cameras store 12 bits in 16.
    dark = (image_of("uint16") // 16).astype(np.uint16)
    expected = peak_signal_noise_ratio(dark, dark // 2, data_range=4095)
    assert image_scores(Picture(dark), dark // 2)["psnr"] == pytest.approx(expected)


def test_scores_of_equal_and_of_tiny_images():
    picture = Picture(image_of("uint8"))
    assert image_scores(picture, picture.pixels) == {"psnr": np.inf, "ssim": 1}
    tiny = replace(picture, pixels=picture.pixels[:5, :5])
    assert set(image_scores(tiny, tiny.pixels)) == {"psnr"}
    stack = Picture(image_of("uint8", pages=3))
    assert image_scores(stack, stack.pixels)["ssim"] == pytest.approx(1)
