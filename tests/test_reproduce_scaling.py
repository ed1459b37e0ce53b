"""Tables II and IV: a large cube that repeats nothing, runs that resume, verdicts that are true."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from kronlearn.cli.app import app
from kronlearn.reproduce import scaling, scaling_points, scaling_report, speedup, table2, table4
from kronlearn.reproduce.measurement import Found, Job, measure
from kronlearn.reproduce.published import TABLE2, TABLE2_SECONDS, TABLE4, TABLE4_SECONDS

HERE = scaling.Machine("a processor", 16, "avx2")
ELSEWHERE = scaling.Machine("another processor", 2, "avx512")

Times = Callable[[scaling.Run], float]


@pytest.fixture
def small(rng: np.random.Generator) -> NDArray[np.float32]:
    """A cube with spatial structure, (20, 24, 6)."""
    rows, columns = np.ogrid[:20, :24]
    image = 1000 + 200 * np.sin(rows / 3) * np.cos(columns / 4)
    return (image[..., None] * rng.uniform(0.5, 2, 6)).astype(np.float32)


@pytest.fixture
def patches(tmp_path: Path, rng: np.random.Generator) -> scaling.Patches:
    file = tmp_path / "patches.npy"
    np.save(file, rng.standard_normal((600, 8, 8)).astype(np.float32))
    return scaling.Patches(file, "noise", streamed=False)


def job(file: Path, engine: str, processors: int, **changes: object) -> Job:
    given = Job(str(file), "general", 8, 4, 3, engine, processors, streamed=True, window=0.05)
    return dataclasses.replace(given, **changes)  # type: ignore[arg-type]


def made_up(
    settings: list[scaling.Setting],
    seconds: Times,
    processors: tuple[int, ...] = (1, 2, 16),
    machine: scaling.Machine = HERE,
    engines: tuple[str, ...] = ("threads", "dask", "processes"),
) -> list[scaling.Result]:
    return [
        scaling.Result(run, "made up", 1, Found(seconds(run), 1.0, 0.5, 10**8), machine)
        for run in scaling.runs(settings, engines, processors, 2)
    ]


def perfect(run: scaling.Run) -> float:
    return (2.0 if run.round else 1.0) / run.processors


def test_the_papers_tables_are_complete():
    assert set(TABLE2) == set(TABLE2_SECONDS)
    assert {m for _, m in TABLE2} == set(table2.SAMPLES)
    assert all(list(row) == [2, 4, 6, 8, 12] for row in TABLE2.values())
    assert all(list(row) == [4, 8, 10, 12, 16] for row in TABLE4.values())
    for row in [*TABLE2.values(), *TABLE4.values()]:
        assert sorted(row.values()) == list(row.values())
        assert all(0.5 < speedup <= 1.1 * p for p, speedup in row.items())
    assert TABLE4_SECONDS["general"] / 100 == pytest.approx(3250, abs=1)


def test_the_settings_are_the_papers():
    chosen = table2.settings(["orthonormal", "general"])
    assert [(at.m, at.n, at.s, at.samples) for at in chosen] == [
        (8, 8, 8, 128000),
        (16, 16, 16, 32000),
        (32, 32, 32, 8000),
        (8, 8, 8, 128000),
        (16, 16, 8, 32000),
        (32, 32, 8, 8000),
    ]
    assert table4.n_patches(table4.SHAPE) == table4.n_patches(table4.cube_shape(1)) == 3_913_140
    (at,) = table4.settings(["general"], 3_913_140)
    assert (at.m, at.n, at.s, at.iterations) == (8, 8, 16, 100)
    for scale in (0.1, 0.01):
        share = table4.n_patches(table4.cube_shape(scale)) / 3_913_140
        assert share == pytest.approx(scale, rel=0.2)
    with pytest.raises(ValueError, match="--scale 0 is not above 0"):
        table4.cube_shape(0)


def test_a_large_cube_looks_like_the_small_one_everywhere_and_repeats_nothing(
    small: NDArray[np.float32],
):
    cube = table4.LargeCube(small, (50, 70, 9))
    rows = np.stack([cube.row(i) for i in range(50)])
    assert rows.shape == (50, 70, 9)
    assert rows.dtype == np.float32
    assert np.corrcoef(rows[:20, :24, 0].ravel(), small[..., 0].ravel())[0, 1] > 0.9
    # The next copy is mirrored; the first and last bands are those of the small cube.
    assert np.corrcoef(rows[20:40, :24, 8].ravel(), small[::-1, :, 5].ravel())[0, 1] > 0.9
    samples = np.concatenate(list(cube.strips()))
    assert len(samples) == table4.n_patches(cube.shape) == 7 * 9 * 9
    assert len(np.unique(samples.reshape(len(samples), -1), axis=0)) == len(samples)
    assert len(np.unique(samples)) > 0.9 * rows.size


def test_the_patches_of_a_cube_are_in_the_order_of_strips_bands_and_columns(
    small: NDArray[np.float32],
):
    cube = table4.LargeCube(small, (21, 30, 4))
    whole = np.stack([cube.row(i) for i in range(21)])
    samples = np.concatenate(list(cube.strips())).reshape(3, 4, 4, 8, 8)
    for strip, top in enumerate((0, 8, 13)):
        for band in range(4):
            for across, left in enumerate((0, 8, 16, 22)):
                expected = whole[top : top + 8, left : left + 8, band]
                np.testing.assert_array_equal(samples[strip, band, across], expected)


@pytest.mark.parametrize("form", table4.FORMATS)
def test_the_file_of_patches_is_the_same_every_time(
    form: str, small: NDArray[np.float32], tmp_path: Path
):
    source = tmp_path / "small.npy"
    np.save(source, small)
    shares: list[float] = []
    made = table4.Cube(source, scale=0.0005, format=form)
    first, count = made.prepared(tmp_path, shares.append)
    assert shares[-1] == 1
    assert shares == sorted(shares)
    cube = table4.LargeCube(small, table4.cube_shape(0.0005))
    stored = table4.stored_samples(first.file)
    np.testing.assert_array_equal(stored[:], np.concatenate(list(cube.strips())))
    assert (stored.shape, stored.dtype) == ((count, 8, 8), np.float32)
    again, _ = made.prepared(tmp_path, lambda _: pytest.fail("made again"))
    assert again == first
    (tmp_path / "other").mkdir()
    other, _ = made.prepared(tmp_path / "other")
    assert other.checksum() == first.checksum()
    assert table4.read_patches(first.file)[1] == count


@pytest.mark.parametrize("form", table4.FORMATS)
def test_a_file_of_patches_is_whole_or_not_there(
    form: str, small: NDArray[np.float32], tmp_path: Path
):
    def fail(share: float) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=rf"patches\.{form} could not be written: the disk is full"):
        table4.write_patches(
            table4.LargeCube(small, (16, 16, 2)), tmp_path / f"patches.{form}", fail
        )
    assert list(tmp_path.iterdir()) == []


def test_indian_pines_is_at_hand():
    assert table4.indian_pines().shape == (145, 145, 200)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (np.zeros((3, 4)), "shape \\(3, 4\\)"),
        (np.zeros((3, 4, 0)), "shape \\(3, 4, 0\\)"),
        (np.full((3, 4, 2), np.nan), "NaN"),
        (np.array([[["a"]]]), "a cube of numbers"),
        (b"\x93NUMPY\x01\x00", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_bad_cube_is_refused_by_name(content: object, reason: str, tmp_path: Path):
    file = tmp_path / "cube.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.save(file, np.asarray(content))
    with pytest.raises(ValueError, match=rf"cube\.npy .*{reason}"):
        table4.read_cube(file)


def test_a_cube_may_come_from_an_npz_file_with_one_array(tmp_path: Path):
    np.savez_compressed(tmp_path / "a.npz", cube=np.ones((4, 5, 6)))
    assert table4.read_cube(tmp_path / "a.npz").shape == (4, 5, 6)
    np.savez(tmp_path / "b.npz", one=np.ones(3), two=np.ones(3))
    with pytest.raises(ValueError, match=r"b\.npz cannot be read"):
        table4.read_cube(tmp_path / "b.npz")


def test_patches_of_the_wrong_kind_are_refused_by_name(tmp_path: Path):
    np.save(tmp_path / "wide.npy", np.zeros((5, 8, 9), np.float32))
    np.save(tmp_path / "integers.npy", np.zeros((5, 8, 8), np.uint16))
    for name in ("wide", "integers"):
        with pytest.raises(ValueError, match=rf"{name}\.npy holds an array of shape"):
            table4.read_patches(tmp_path / f"{name}.npy")
    whole = (tmp_path / "wide.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"cut\.npy cannot be read"):
        table4.read_patches(tmp_path / "cut.npy")


def test_drawn_patches_are_from_all_images_and_without_means(tmp_path: Path):
    images = table2.made_up_images(3, 64)
    samples = table2.drawn(images, 16, 100)
    assert samples.shape == (100, 16, 16)
    assert abs(samples.mean(axis=(1, 2))).max() < 1e-3
    np.testing.assert_array_equal(samples, table2.drawn(images, 16, 100))
    assert len(np.unique(samples.reshape(100, -1), axis=0)) == 100
    with pytest.raises(ValueError, match=r"7204 patches of 16 × 16 .* smallest has 2401"):
        table2.drawn(images, 16, 7204)
    with pytest.raises(ValueError, match="smallest has 0"):
        table2.drawn([images[0][:10]], 16, 1)
    np.save(tmp_path / "images.npy", np.stack(images).astype(np.uint8))
    assert [image.shape for image in table2.read_images(tmp_path / "images.npy")] == [(64, 64)] * 3
    np.save(tmp_path / "one.npy", images[0])
    with pytest.raises(ValueError, match=r"one\.npy does not hold gray images"):
        table2.read_images(tmp_path / "one.npy")
    (tmp_path / "text.npy").write_text("text")
    with pytest.raises(ValueError, match=r"text\.npy cannot be read"):
        table2.read_images(tmp_path / "text.npy")


def test_the_numbers_of_processors_always_begin_with_one():
    assert scaling.processor_counts(None, 1) == (1,)
    assert scaling.processor_counts(None, 2) == (1, 2)
    assert scaling.processor_counts(None, 12) == (1, 2, 4, 8, 12)
    assert scaling.processor_counts(None, 16) == (1, 2, 4, 8, 16)
    assert scaling.processor_counts("4, 2", 16) == (1, 2, 4)
    for text in ("", "0", "2,", "-1", "two"):
        with pytest.raises(ValueError, match="--jobs"):
            scaling.processor_counts(text, 2)


def test_names_that_do_not_exist_are_refused():
    assert scaling.engines_named("dask, threads,dask") == ("dask", "threads")
    with pytest.raises(ValueError, match="no engine 'mpi'; choose from threads"):
        scaling.engines_named("threads,mpi")
    assert speedup.Choice(methods="default,general").method_names == ("default", "general")
    with pytest.raises(ValueError, match="SuKro does not run on every engine"):
        _ = speedup.Choice(methods="general,SuKro").method_names


def test_runs_that_the_csv_file_holds_are_not_repeated(
    patches: scaling.Patches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Job] = []

    def counted(given: Job) -> Found:
        asked.append(given)
        return Found(0.1234567, 1 / 3, None if given.engine == "processes" else 0.5, 7)

    monkeypatch.setattr(scaling, "measure", counted)
    file = tmp_path / "table.csv"
    settings = [scaling.Setting("general", 8, 8, 4, 600, 3)]
    wanted = scaling.runs(settings, ("threads", "processes"), (1, 2), 2)

    def all_runs(machine: scaling.Machine = HERE) -> list[scaling.Result]:
        return list(scaling.run(wanted, lambda _: patches, file, machine))

    first = all_runs()
    assert len(asked) == len(first) == 8
    assert {(one.engine, one.processors) for one in asked} == {
        (engine, p) for engine in ("threads", "processes") for p in (1, 2)
    }
    assert all_runs() == first == scaling.read_results(file)
    assert len(asked) == 8
    all_runs(ELSEWHERE)
    assert len(asked) == 16
    np.save(patches.file, np.zeros((600, 8, 8), np.float32))
    all_runs()
    assert len(asked) == 24
    columns = file.read_text("utf-8").splitlines()[0].split(",")
    for name in ("method", "engine", "processors", "seconds_per_iteration", "rmse", "peak_bytes"):
        assert name in columns


def test_a_csv_file_that_was_cut_or_is_another_one_is_refused(tmp_path: Path):
    file = tmp_path / "table.csv"
    for result in made_up([scaling.Setting("general", 8, 8, 4, 9, 3)], perfect)[:2]:
        scaling._append(file, result)
    text = file.read_text("utf-8")
    assert len(scaling.read_results(file)) == 2
    for cut, line in ((1, 3), (3, 3), (30, 3)):
        file.write_text(text[:-cut], "utf-8")
        with pytest.raises(ValueError, match=rf"Line {line} of .*table\.csv"):
            scaling.read_results(file)
    for content in (b"a,b\n1,2\n", b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"table\.csv does not hold results"):
            scaling.read_results(file)


def test_speedups_are_taken_within_a_round():
    (setting,) = table4.settings(["general"], 3_913_140)
    # The machine is half as fast in the second round: perfect speedup all the same.
    found = scaling_points.points(made_up([setting], perfect))
    assert [point.processors for point in found] == [1, 2, 16]
    for point in found:
        assert point.speedup == dict.fromkeys(("threads", "dask", "processes"), point.processors)
        assert (point.dask_share, point.ceiling_share, point.rounds) == (1, 1, 2)
    assert found[1].found["threads"].seconds_per_iteration == pytest.approx(0.75)


def test_what_was_aimed_at_holds_or_is_missed_as_the_numbers_say():
    settings = table4.settings(["general", "orthonormal"], 3_913_140)

    def verdicts(seconds: Times, engines: tuple[str, ...] = ("threads", "dask")) -> dict[str, bool]:
        results = made_up(settings, seconds, engines=engines)
        found = scaling_points.claims("table4", scaling_points.points(results))
        return {claim.text: claim.held for claim in found}

    def fast(run: scaling.Run) -> float:
        return 1.0 / run.processors

    good = verdicts(fast)
    assert len(good) == 8
    assert all(good.values())

    def slow(run: scaling.Run) -> float:
        """12 times as fast with 16, Dask at half the threads' speed, 3 s with two threads."""
        return {1: 3.2, 2: 3.0, 16: 3.2 / 12}[run.processors] * (1 + (run.engine == "dask"))

    bad = verdicts(slow)
    assert set(bad) == set(good)
    missed = [text for text, held in bad.items() if not held]
    assert len(missed) == 7
    assert any(text.startswith("Learning from 3,913,140") for text in set(bad) - set(missed))

    def shared(run: scaling.Run) -> float:
        """The cores give 12.5 times as much as one, and threads reach 12 of that."""
        reached = {1: 1.0, 2: 2.0, 16: 12.5 if run.engine == "processes" else 12.0}
        return 1.0 / reached[run.processors]

    at_the_ceiling = verdicts(shared, ("threads", "processes"))
    assert at_the_ceiling[next(text for text in good if text.startswith("16 threads"))]
    few = made_up(table4.settings(["general"], 500), slow)
    assert scaling_points.claims("table4", scaling_points.points(few)) == []


def test_a_report_has_every_machine_and_the_papers_numbers():
    settings = table2.settings(["general", "orthonormal"])
    results = made_up(settings, perfect, (1, 2, 12))
    results += made_up(settings[:1], perfect, (1, 2), ELSEWHERE, ("threads",))
    text = scaling_report.markdown("table2", results)
    assert text.index("## a processor, 16 cores") < text.index("## another processor, 2 cores")
    row = next(line for line in text.splitlines() if line.startswith("| general | 8 | 12 | 0.125"))
    assert row.split("|")[4:-1] == [
        *(" 0.125 ", " 12.00 ", " 100% ", " 0.125 ", " 12.00 ", " 100% ", " 12.00 ", " 100% "),
        " 2.6 ",
    ]
    assert "| general | 8 | 2 | threads | 1 | 0.5 | 100 |" in text
    assert "217 (orthonormal, m = 8)" in text
    assert "**missed**" not in text
    figure = scaling_report.picture("table2", results)
    assert len(figure.axes) == 6
    assert len(scaling_report.picture("table2", results[-4:]).axes) == 1


@pytest.mark.slow
def test_threads_find_the_same_however_many_and_processes_have_a_speed(patches: scaling.Patches):
    one, two = (measure(job(patches.file, "threads", p)) for p in (1, 2))
    assert one.rmse == two.rmse
    assert one.rmse is not None
    assert 0 < one.seconds_per_iteration < one.seconds
    assert one.peak_bytes is None or 0 <= one.peak_bytes < 100e6
    ceiling = measure(job(patches.file, "processes", 2))
    assert ceiling.seconds_per_iteration > 0
    assert ceiling.rmse is None


@pytest.mark.slow
def test_dask_workers_find_what_threads_find(tmp_path: Path, rng: np.random.Generator):
    file = tmp_path / "samples.npy"
    np.save(file, rng.standard_normal((5000, 8, 8)).astype(np.float32))
    threads = measure(job(file, "threads", 2))
    for streamed in (True, False):
        assert measure(job(file, "dask", 2, streamed=streamed)).rmse == threads.rmse


def test_a_measurement_that_fails_says_why(tmp_path: Path):
    np.save(tmp_path / "bad.npy", np.full((50, 8, 8), np.nan, np.float32))
    with pytest.raises(RuntimeError, match=r"p = 1\) from .*bad\.npy failed: .*NaN"):
        measure(job(tmp_path / "bad.npy", "threads", 1))


def test_measuring_needs_the_core_only(tmp_path: Path, small: NDArray[np.float32]):
    np.save(tmp_path / "small.npy", small)
    absent = ("skimage", "matplotlib", "typer", "rich", "tensorly", "PIL", "dask", "distributed")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "from kronlearn.reproduce.speedup import main\n"
        "main(['table4', '--quick', '--cube', 'small.npy', '--methods', 'orthonormal',"
        " '--engines', 'threads', '--jobs', '1', '--iterations', '2', '--output', 'out'])\n"
        "main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "1/1: orthonormal, m = 8, threads, p = 1:" in done.stdout
    assert "table2" in done.stdout.rpartition("usage:")[2]
    (result,) = scaling.read_results(tmp_path / "out" / "table4.csv")
    assert result.data.startswith("small.npy, 20x24x6 enlarged to")


def test_the_plain_command_reports_errors_in_a_line(tmp_path: Path):
    for arguments in (["--engines", "mpi"], ["--images", str(tmp_path / "absent.npy")]):
        with pytest.raises(SystemExit, match="Error: "):
            speedup.main(["table2", "--quick", "--output", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        speedup.main(["table2", "--rounds", "0"])


def invoke(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize("experiment", ["table2", "table4"])
def test_the_commands_measure_and_write_and_go_on(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Job] = []

    def counted(given: Job) -> Found:
        asked.append(given)
        return Found(1.0 / given.processors, 3.0, 0.5, 10**7)

    monkeypatch.setattr(scaling, "measure", counted)
    place = tmp_path / "out"
    common = ("--quick", "-o", str(place), "--jobs", "1,2")
    text = invoke(experiment, *common)
    assert len(asked) == 12
    assert "Table" in text
    assert {path.name for path in place.iterdir()} == {
        f"{experiment}.{s}" for s in ("csv", "md", "png")
    }
    record = json.loads(invoke(experiment, *common, "--json"))
    assert len(asked) == 12
    (machine,) = record["machines"]
    assert {point["p"] for point in machine["points"]} == {1, 2}
    assert all(point["speedup"]["dask"] == point["p"] for point in machine["points"])
    (place / f"{experiment}.md").unlink()
    invoke(experiment, "--only-report", "-o", str(place), "--quiet")
    assert (place / f"{experiment}.md").is_file()


def test_the_commands_refuse_what_they_cannot_use(tmp_path: Path):
    place = ("-o", str(tmp_path / "out"))
    assert "no such folder" in invoke("table2", *place, "--images", "absent", code=2)
    assert "--scale 2" in invoke("table4", *place, "--scale", "2", code=2)
    assert "absent.npy" in invoke("table4", *place, "--cube", "absent.npy", code=2)
    assert "no engine" in invoke("table2", *place, "--engines", "mpi", "--quick", code=2)
    assert "table4.csv" in invoke("table4", *place, "--only-report", code=2)


def test_a_folder_of_images_is_cut_into_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
):
    from skimage import io

    (tmp_path / "photos").mkdir()
    for name in ("a.png", "b.png"):
        image = rng.integers(0, 256, (60, 50), dtype=np.uint8)
        io.imsave(tmp_path / "photos" / name, image, check_contrast=False)
    monkeypatch.setattr(scaling, "measure", lambda given: Found(1.0, 1.0, 0.5))
    place, work = tmp_path / "out", tmp_path / "work"
    invoke(
        *("table2", "--quick", "--images", str(tmp_path / "photos"), "-o", str(place)),
        *("--work", str(work), "--jobs", "1", "--engines", "threads"),
    )
    assert np.load(work / "patches-8x8-2000.npy").shape == (2000, 8, 8)
    assert "the images in photos" in (place / "table2.md").read_text("utf-8")
