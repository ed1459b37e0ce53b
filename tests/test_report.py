"""The HTML report: self-contained, escaped, accessible, and working in a browser."""

import base64
import io
import json
import re
import shutil
import subprocess
from functools import cache
from html import escape, unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import kronlearn as kl
from command_line import succeeds
from kronlearn.cli.report import Page, render, save_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text between them."""

    VOID = ("br", "hr", "img", "input", "link", "meta")

    def __init__(self, page):
        super().__init__()
        self.found, self.texts, self.open = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def page_about(**changes):
    rng = np.random.default_rng(0)
    after = np.tile(np.arange(48, dtype=np.uint8) * 5, (40, 1))
    noise = rng.integers(-20, 20, (40, 48))
    facts = {
        "title": "Denoised: photo.png",
        "before": np.clip(after + noise, 0, 255).astype(np.uint8),
        "after": after,
        "facts": [("noise level", "σ = 11.5, estimated from the image")],
    }
    facts |= {
        "dictionary": kl.KroneckerDictionary([np.eye(4), np.eye(4)]),
        "history": {"rmse": [3.0, 2.0], "mean_nonzeros": [2.0, 1.9], "seconds": [0.1, 0.2]},
        "settings": {"patch_size": (4, 4), "gain": 1.15, "seed": 0, "mean": True, "no": None},
        "seconds": {"learning": 0.25, "denoising": 0.5},
    }
    return Page(**facts | changes)


@cache
def whole_page():
    """The page with all content; drawing it takes a while."""
    return render(page_about())


def pixels(uri):
    """The picture in a data URI."""
    start, _, data = uri.partition(",")
    assert start == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data, validate=True))))


def test_the_page_shows_all_content(tmp_path):
    save_report(page_about(), tmp_path / "page.html", overwrite=False)
    # Equal content gives an equal page.
    assert (tmp_path / "page.html").read_text("utf-8") == whole_page()
    page = Elements(whole_page())
    assert page.all("html") == [{"lang": "en"}]
    for words in (
        "Denoised: photo.png",
        "σ = 11.5, estimated from the image",
        "4 × 4 patches, 4 × 4 atoms",
        "Root mean square error",
        "patch size 4 × 4 gain 1.15 seed 0 mean yes",
        "learning 0.250 s denoising 0.500 s together 0.750 s",
        f"kronlearn {kl.__version__}",
    ):
        assert words in page.text.replace("  ", " ")
    assert "Black is" not in page.text
    # Curves have the colours of the page.
    assert "#000000" not in whole_page()


def test_the_page_loads_no_other_file():
    html = whole_page()
    page = Elements(html)
    assert {tag for tag, _ in page.found} & {"link", "iframe", "object", "base", "form"} == set()
    for tag, attributes in page.found:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
                assert value.startswith(("data:image/png;base64,", "#")), (tag, name, value[:40])
    styles = re.findall(r"<style.*?</style>", html, re.DOTALL)
    assert all("url(" not in style.replace("url(#", "") for style in styles)
    assert all("@import" not in style for style in styles)
    # Nothing is loaded from the addresses of namespaces.
    rest = re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)
    assert "http://" not in rest
    assert "https://" not in rest


def test_the_slider_and_the_pictures_have_labels():
    page = Elements(whole_page())
    (slider,) = (e for e in page.all("input") if e["type"] == "range")
    assert slider["id"] in [label.get("for") for label in page.all("label")]
    assert all(image["alt"] for image in page.all("img"))
    assert all(drawing["aria-label"] for drawing in page.all("svg") if "role" in drawing)
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>.png", '"><img src=x>', "$title&x"])
def test_texts_are_escaped(hostile):
    html = render(
        page_about(
            title=hostile,
            facts=[(hostile, hostile)],
            settings={hostile: hostile},
            seconds={hostile: 1.0},
            notes=[hostile],
            history=None,
        )
    )
    page = Elements(html)
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == len(Elements(whole_page()).all("img"))
    assert page.text.count(hostile) == 8


def test_pictures_show_the_images():
    content = page_about()
    before, after, difference = Elements(whole_page()).all("img")
    assert np.array_equal(pixels(before["src"]), content.before)
    assert np.array_equal(pixels(after["src"]), content.after)
    change = content.after.astype(int) - content.before
    drawn = pixels(difference["src"]).astype(int)
    assert np.array_equal(np.sign(drawn - 127.5)[change != 0], np.sign(change)[change != 0])
    assert "black −20 or less, white 20 or more" in Elements(whole_page()).text
    # Small images are enlarged by a whole number.
    assert (after["width"], after["height"]) == (str(7 * 48), str(7 * 40))


def test_large_images_are_reduced_with_a_note():
    large = np.zeros((40, 3200), np.uint8)
    page = Elements(render(page_about(before=large, after=large, history=None, dictionary=None)))
    assert pixels(page.all("img")[1]["src"]).shape == (20, 1600)
    assert "40 × 3200 pixels and is shown at 50 % of its size" in page.text


@pytest.mark.parametrize("dtype", ["bool", "uint16", "int32", "float32", "float64"])
def test_every_type_is_shown_from_its_smallest_to_its_largest_value(dtype):
    image = (np.arange(48 * 40).reshape(40, 48) % 2).astype(dtype)
    page = Elements(render(page_about(before=image, after=image, history=None, dictionary=None)))
    assert "Black is 0, white is 1." in page.text
    assert np.array_equal(pixels(page.all("img")[1]["src"]), 255 * image.astype(np.uint8))


def test_missing_pixels_are_marked_and_errors_shown():
    missing = np.zeros((40, 48), bool)
    missing[:5] = True
    content = page_about(missing=missing, reference=np.zeros((40, 48), np.uint8), history=None)
    page = Elements(render(content))
    before = pixels(page.all("img")[0]["src"])
    assert (before[:5] == (214, 51, 132)).all()
    assert np.array_equal(before[5:, :, 1], content.before[5:])
    assert "Missing pixels are pink" in page.text
    assert "After minus reference" in page.text
    assert "Difference" not in Elements(render(page_about(missing=missing, history=None))).text


@pytest.mark.parametrize("n_terms", [1, 2])
@pytest.mark.parametrize("sizes", [(4, 4), (4, 4, 3)], ids=str)
def test_colour_and_dictionaries_of_every_kind_are_shown(sizes, n_terms):
    rng = np.random.default_rng(0)
    terms = [[rng.standard_normal((m, m + 1)) for m in sizes] for _ in range(n_terms)]
    colour = np.zeros((40, 48, 3), np.uint8)
    dictionary = kl.KroneckerSumDictionary(terms)
    page = Elements(
        render(page_about(before=colour, after=colour, dictionary=dictionary, history=None))
    )
    shape = " × ".join(str(m + 1) for m in sizes)
    assert f"{shape} atoms" in page.text
    assert ("2 terms" in page.text) == (n_terms == 2)
    assert ("first factor" in page.text) == (n_terms == 1 and len(sizes) == 2)
    assert "Root mean square" not in page.text
    labels = [drawing.get("alt") or drawing.get("aria-label") for drawing in drawings(page)]
    assert "The atoms of the dictionary" in labels


def drawings(page):
    return [*page.all("img"), *page.all("svg")]


@pytest.mark.parametrize(
    "command", [["denoise", "--add-noise", "15"], ["inpaint", "--drop", "0.2"]]
)
@pytest.mark.usefixtures("empty_folder")
def test_the_commands_write_pages(tmp_path, command):
    name = "<script>alert(1)<&.png"
    y, x = np.mgrid[:48, :40]
    Image.fromarray((100 + 60 * np.sin(x / 3) + y).astype(np.uint8)).save(name)
    succeeds(*command, name, "out.png", "--report", "page.html", "--patch", "4x4", "-q")
    page = Elements((tmp_path / "page.html").read_text("utf-8"))
    assert len(page.all("script")) == 1
    assert name in page.text
    for words in ("PSNR", "Settings", "Time", "Dictionary", "Learning"):
        assert words in page.text


# In a browser


WIDE = {
    "title": "Denoised: " + "long" * 40 + ".png",
    "before": np.zeros((600, 1500), np.uint8),
    "after": np.zeros((600, 1500), np.uint8),
    "dictionary": None,
}
# Of a page in a window w with a document d: where the slider is and what it shows, …
SLIDER = "[d.getElementById('at').value, w.getComputedStyle(d.querySelector('.after')).clipPath]"
MOVED = f"(e => (e.value = 20, e.dispatchEvent(new w.Event('input')), {SLIDER}))(w.at)"
# … the widths of the page and of its image at full size, and the colours of text and paper.
WIDTH = "(d.getElementById('full').click(), [d.documentElement.scrollWidth, w.innerWidth]"
WIDTH += ".concat(d.querySelector('.compare').offsetWidth))"
COLOURS = "['svg[aria-label=Learning] text', 'body'].map(q => w.getComputedStyle("
COLOURS += "d.querySelector(q))).map((style, k) => k ? style.backgroundColor : style.fill)"
# What changes on the page, how wide its window is, its scheme, and what is asked.
QUESTIONS = {
    "slider": ({}, 1200, "light", SLIDER),
    "moved": ({}, 1200, "light", MOVED),
    "narrow": (WIDE, 320, "light", WIDTH),
    "wide": (WIDE, 1200, "light", WIDTH),
    "light": ({}, 1200, "light", COLOURS),
    "dark": ({}, 1200, "dark", COLOURS),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What headless Chromium answers, with a frame for each question."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    frames, asked = "", []
    for k, (changes, width, scheme, question) in enumerate(QUESTIONS.values()):
        source = escape(render(page_about(**changes)) if changes else whole_page())
        style = f"width: {width}px; color-scheme: {scheme}"
        frames += f'<iframe style="{style}" srcdoc="{source}"></iframe>'
        asked.append(f"((w, d) => {question})(frames[{k}], frames[{k}].document)")
    script = f"onload = () => document.body.textContent = JSON.stringify([{', '.join(asked)}])"
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "frames.html"
    page.write_text(f"<!doctype html><body>{frames}<script>{script}</script>", "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    command = [CHROMIUM, *options, "--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    dump = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    found = json.loads(unescape(re.search(r"<body>(.*)</body>", dump, re.DOTALL)[1]))
    return dict(zip(QUESTIONS, found, strict=True))


def test_the_slider_moves_the_edge_between_the_images(answers):
    assert answers["slider"] == ["50", "inset(0px 0px 0px 50%)"]
    assert answers["moved"] == ["20", "inset(0px 0px 0px 20%)"]


@pytest.mark.parametrize("window", ["narrow", "wide"])
def test_the_page_fits_the_window_with_images_at_full_size(answers, window):
    page, inner, image = answers[window]
    assert page <= inner
    assert image == 1500


def test_light_and_dark_have_their_own_colours(answers):
    brightness = {
        scheme: [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in answers[scheme]]
        for scheme in ("light", "dark")
    }
    assert brightness["light"][1] - brightness["light"][0] > 400
    assert brightness["dark"][0] - brightness["dark"][1] > 400
