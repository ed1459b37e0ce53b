"""Results that are kept, their statistics, claims, tables and reports."""

import dataclasses
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from command_line import draw_nothing, fails, succeeds
from kronlearn.experiments import (
    comparison,
    comparison_runs,
    gpu,
    report,
    scaling,
    speedup,
    table3,
)
from kronlearn.experiments.methods import DEFAULT_METHODS, METHODS
from kronlearn.experiments.published import (
    IMAGES,
    SIGMAS,
    TABLE1,
    TABLE1_SETTINGS,
    TABLE2,
    TABLE3,
    TABLE4,
)
from kronlearn.experiments.store import Store, deviation, grouped, mean, save_rows

KEPT = Path(__file__).resolve().parents[1] / "experiments"


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    count: int
    value: float
    maybe: float | None
    curve: tuple[float, ...]


def test_results_are_read_back_as_they_were_added(tmp_path: Path):
    file = tmp_path / "rows.csv"
    first = Store(file, Row).add(Row("a, b", 3, 1 / 3, None, (1.0, 2 / 3)))
    assert first == Row("a, b", 3, 0.333333, None, (1.0, 0.666667))
    store = Store(file, Row)
    second = store.add(Row("c", 4, 2.0, 0.5, ()))
    assert store.rows == Store(file, Row).rows == [first, second]
    assert store.find(name="c", count=4) == second
    assert store.find(name="c", count=3) is None
    assert file.read_text("utf-8").splitlines()[0] == "name,count,value,maybe,curve"


def test_a_damaged_or_foreign_csv_file_is_refused(tmp_path: Path):
    file = tmp_path / "rows.csv"
    for name in "ab":
        Store(file, Row).add(Row(name, 3, 1.25, None, (1.5,)))
    whole = file.read_text("utf-8")
    for damaged, line in (
        (whole + "x,1\n", 4),
        (whole.replace("a,", ""), 2),
        (whole[:-2], 3),  # cut in the middle of a number
        (whole.splitlines()[0], 1),  # the next line would be appended to the headings
    ):
        file.write_text(damaged, "utf-8")
        with pytest.raises(ValueError, match=rf"Line {line} of .*rows\.csv .*; remove it"):
            Store(file, Row)
    for content in (b"a,b\n1,2\n", b"\xff\xfe\x00"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows\.csv does not hold results"):
            Store(file, Row)


def test_rows_replace_those_of_an_earlier_run(tmp_path: Path):
    file = tmp_path / "rows.csv"
    for name in "ab":
        rows = [Row(name, 1, 2.0, None, ())]
        assert list(save_rows(rows, file, Row)) == Store(file, Row).rows == rows


def test_a_page_emphasises_what_is_missed_and_the_terminal_does_not(tmp_path: Path):
    claims = [report.Claim("A is above B", [report.Outcome("n = 8", False, "-1%")])]
    shown = report.publish(tmp_path / "page.md", "Title", [claims]).shown
    assert "**missed** at n = 8" in (tmp_path / "page.md").read_text("utf-8")
    assert shown[0] == "- A is above B: holds at 0 of 1, missed at n = 8: -1%."


def test_groups_have_mean_and_deviation():
    rows = [Row("a", 1, value, None, ()) for value in (1.0, 2.0, 6.0)]
    assert grouped(rows, lambda row: row.name) == {"a": rows}
    assert mean(rows, "value") == 3
    assert deviation(rows, "value") == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert deviation(rows[:1], "value") is None


def test_a_claim_lists_the_settings_where_it_is_missed_and_skips_those_it_is_not_about():
    outcomes = {
        8: report.Outcome("n = 8", True, "+1%"),
        16: report.Outcome("n = 16", False, "-1%"),
        24: None,
    }
    checks = {"A is above B": outcomes.get, "C": {8: outcomes[8]}.get, "D": {}.get}
    assert list(map(str, report.check_claims(checks, outcomes))) == [
        "- A is above B: holds at 1 of 2, **missed** at n = 16: -1%.",
        "- C: holds at 1 of 1.",
    ]


def test_a_table_of_records_has_their_numbers():
    rows = [{"m": 8, "held_out": 1234.567, "x": None}]
    table = report.Table.of("Title", rows, "m held_out:.3g x:.2f")
    assert table.markdown() == (
        "Title:\n\n| m | held out | x |\n| --- | --- | --- |\n| 8 | 1235 |  |"
    )


def test_a_page_of_results_needs_reports(tmp_path: Path):
    assert "has none of table1.md" in fails("reproduce", "results", tmp_path)


@pytest.mark.parametrize(("file", "kind"), [("scaling", scaling.Pass), ("gpu", gpu.Row)])
def test_kept_results_of_benchmarks_can_be_read(file: str, kind: type):
    assert len(Store(KEPT / f"{file}.csv", kind).rows) >= 10


def test_kept_reports_are_what_the_kept_results_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    draw_nothing(monkeypatch)
    kept = Store(KEPT / "comparison.csv", comparison_runs.Result)
    for experiment in comparison.TITLES:
        settings = comparison_runs.settings(experiment)
        runs = product(range(5), settings, DEFAULT_METHODS)
        results = [
            kept.find(**dataclasses.asdict(at), draw=draw, method=method)
            for draw, at, method in runs
        ]
        comparison.write(experiment, results, comparison.IMAGES, tmp_path)
    for experiment in ("table2", "table4"):
        shutil.copy(KEPT / f"{experiment}.csv", tmp_path)
        speedup.write(experiment, tmp_path)
    table3.write(Store(KEPT / "table3.csv", table3.Result).rows, tmp_path)
    succeeds("reproduce", "results", tmp_path)
    for page in KEPT.glob("*.md"):
        if page.name != "README.md":
            assert (tmp_path / page.name).read_text("utf-8") == page.read_text("utf-8")


# Published numbers


def test_the_published_tables_are_complete():
    assert len(TABLE3) == 3 * len(SIGMAS) * len(IMAGES) + 12 + 15
    assert TABLE3[50, "house", "PairAK-SVD"] == (27.302, 0.7614)
    assert TABLE3[50, "house", "K-SVD"] == (27.95, None)
    assert set(TABLE1) <= set(METHODS)
    assert all(len(row) == len(TABLE1_SETTINGS) for row in TABLE1.values())
    assert np.mean(np.divide(TABLE1["PairAK-SVD"], TABLE1["general"])) == pytest.approx(7, abs=0.5)
    for row in [*TABLE2.values(), *TABLE4.values()]:
        assert sorted(row.values()) == list(row.values())
        assert all(0.5 < speedup <= 1.1 * p for p, speedup in row.items())
