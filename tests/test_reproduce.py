"""The paper's experiments: runs that resume, tables that say what they should."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.data import camera
from typer.testing import CliRunner

from kronlearn.cli.app import app
from kronlearn.reproduce import table3, table3_report
from kronlearn.reproduce.published import BM3D, IMAGES, KSVD, SIGMAS, TABLE3


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for k, name in enumerate(IMAGES[:2]):
        Image.fromarray(camera()[k * 64 : k * 64 + 64, 200:264]).save(folder / f"{name}.png")
    return folder


def made_up(gain: float) -> list[table3.Result]:
    """Results that lie by a gain above the paper's own rows, the default above the best."""
    results = []
    for cell in table3.cells(draws=2):
        psnr = table3_report.paper_best(cell.sigma, cell.image)
        if cell.method in ("general", "orthonormal"):
            psnr = table3_report.paper_psnr(cell.sigma, cell.image, cell.method)
        # The two draws differ, their mean does not.
        spread = 0.5 if cell.draw else -0.5
        results.append(
            table3.Result(
                cell.image, cell.sigma, cell.draw, cell.method, 0, psnr + gain + spread, 0.9, 1.0
            )
        )
    return results


def test_the_published_numbers_are_complete():
    assert {sigma for sigma, _ in TABLE3} == set(SIGMAS)
    assert all(len(row) == len(IMAGES) for row in TABLE3.values())
    assert len(KSVD) == 12
    assert len(BM3D) == 15


def test_cells_that_beat_the_paper_hold():
    verdicts = table3_report.verdicts(table3_report.means(made_up(0.3)))
    assert len(verdicts) == 25
    assert all(verdict.over_paper == pytest.approx(0.3) for verdict in verdicts)
    # At σ = 20 the best row of the paper is PairAK-SVD's, more than 0.15 above the other two there.
    assert all(verdict.rows_hold for verdict in verdicts)


def test_rows_below_the_papers_fall_short():
    found = table3_report.means(made_up(-0.11))
    verdicts = table3_report.verdicts(found)
    assert not any(verdict.rows_hold for verdict in verdicts)
    text = table3_report.markdown(found, 2)
    assert "a row falls short" in text
    assert "0 of 25 cells hold" in text
    assert "**below**" in text


def test_an_incomplete_table_leaves_its_cells_empty():
    results = [result for result in made_up(0.1) if result.image == "lena" and result.sigma == 5]
    found = table3_report.means(results)
    assert [(v.sigma, v.image) for v in table3_report.verdicts(found)] == [(5, "lena")]
    assert "| lena |" in table3_report.markdown(found, 2)
    assert "No cell is complete" in table3_report.markdown({}, 2)


def test_the_command_writes_table_picture_and_csv_and_goes_on_from_it(images: Path, tmp_path: Path):
    place = tmp_path / "out"
    command = ["reproduce", "table3", "--images", str(images), "-o", str(place), "--quick"]
    first = CliRunner().invoke(app, [*command, "--json"])
    assert first.exit_code == 0, first.output
    cells = json.loads(first.stdout)["cells"]
    assert [(cell["sigma"], cell["image"]) for cell in cells] == [(20, "lena"), (20, "barbara")]
    results = table3.read_results(place / "table3.csv")
    assert [r.method for r in results] == list(table3.METHODS) * 2
    by_method = {r.method: r.psnr for r in results if r.image == "lena"}
    assert by_method["default"] > by_method["general"] > 26
    with Image.open(place / "table3.png") as picture:
        assert picture.width > 300
    assert "swapped" in (place / "table3.md").read_text("utf-8")

    # What is in the csv is not run again, unless the pixels are others.
    text = (place / "table3.csv").read_text("utf-8")
    (place / "table3.csv").write_text(text.replace(f"{results[3].psnr:.4f}", "99.0000"), "utf-8")
    again = CliRunner().invoke(app, [*command, "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["cells"][0]["over_paper"] > 60
    assert len(table3.read_results(place / "table3.csv")) == len(results)
    turned = table3.run(
        [table3.Cell("lena", 20, 0, "orthonormal")],
        lambda _: camera()[200:264, :64].astype(np.float32),
        place / "table3.csv",
    )
    assert next(turned).psnr != results[1].psnr


def test_the_same_draw_gives_the_same_result(tmp_path: Path):
    clean = camera()[:48, 200:248].astype(np.float32)
    cell = table3.Cell("lena", 20, 3, "default")
    runs = [
        next(iter(table3.run([cell], lambda _: clean, tmp_path / f"{n}.csv", n))) for n in (1, 2)
    ]
    assert runs[0].psnr == runs[1].psnr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n", "does not hold results"),
        ("image,sigma,draw,method,checksum,psnr,ssim,seconds\nx\n", "Line 2"),
    ],
)
def test_a_foreign_csv_is_refused(tmp_path: Path, content: str, message: str):
    file = tmp_path / "table3.csv"
    file.write_text(content, "utf-8")
    with pytest.raises(ValueError, match=message):
        table3.read_results(file)


def test_a_folder_without_the_images_is_refused(tmp_path: Path):
    result = CliRunner().invoke(app, ["reproduce", "table3", "--images", str(tmp_path)])
    assert result.exit_code == 2
    assert "lena.png" in result.stderr


@pytest.mark.slow
def test_bench_images_compares_every_method():
    result = CliRunner().invoke(app, ["bench", "images", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    tasks = {row["task"] for row in found["rows"]}
    assert len(tasks) == 5
    assert all(row["psnr"] > 20 and row["seconds"] > 0 for row in found["rows"])
    assert found["memory"] is None or found["memory"]["ratio"] > 0
