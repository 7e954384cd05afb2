"""Records as rows, and rows as files."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from records import make_record
from typer.testing import CliRunner

from tta_panda.cli import app
from tta_panda.errors import DataError, MissingExtraError, StoreError
from tta_panda.evaluation.store import RunStore, load_records
from tta_panda.files import csv_rows, flat, locked, parquet_rows, remove_parts, save_file, saving

ROWS = [{"name": "=1+1", "beta": "auto", "lr": 1}, {"name": "a\n\udcff", "beta": 0.5, "more": None, "lr": 0.1}]


@pytest.fixture
def folder(tmp_path):
    store = RunStore(tmp_path / "runs")
    for method in ("clip", "clip+panda"):
        for seed in (0, 1):
            store.save(make_record(method, seed=seed, options={"lr": 0.1, "layers": [1, 2]}))
    return store.root


def test_records_are_flat_rows_of_plain_values(folder):
    rows = load_records(folder)
    assert {(row["method"], row["seed"]) for row in rows} == {(m, s) for m in ("clip", "clip+panda") for s in (0, 1)}
    for row in rows:
        assert all(value is None or isinstance(value, str | int | float | bool) for value in row.values())
        assert (row["accuracy"], row["options.lr"], row["options.layers"]) == (0.5, 0.1, "[1, 2]")
        assert row["environment.python"] == "3" and row["images_with_gradient"] == 12.5
    with pytest.raises(StoreError, match="no folder"):
        load_records(folder / "nowhere")


def test_nested_values_get_a_column_each():
    assert flat({"a": 1, "b": {"c": {"d": "x"}, "e": (1, 2)}}) == {"a": 1, "b.c.d": "x", "b.e": "[1, 2]"}


def test_csv(tmp_path):
    with save_file(tmp_path / "new" / "rows.csv", csv_rows(ROWS)).open(newline="", encoding="utf-8") as file:
        header, first, second = csv.reader(file)
    assert header == ["name", "beta", "lr", "more"]
    assert first == ["'=1+1", "auto", "1", ""]
    assert second == ["a\n\\udcff", "0.5", "0.1", ""]
    with pytest.raises(StoreError, match="Cannot write"):
        save_file(tmp_path / "new" / "rows.csv" / "rows.csv", csv_rows(ROWS))


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    table = parquet.read_table(save_file(tmp_path / "rows.parquet", parquet_rows(ROWS)))
    assert table.column_names == ["name", "beta", "lr", "more"]
    assert table["name"].to_pylist() == ["=1+1", "a\n\\udcff"]  # no spreadsheet reads it
    assert table["beta"].to_pylist() == ["auto", "0.5"]
    assert table["lr"].to_pylist() == [1.0, 0.1]


def test_parquet_without_its_package_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r'pip install "tta-panda\[parquet\]"'):
        parquet_rows(ROWS)


def test_report_writes_the_rows_of_a_folder(folder, tmp_path):
    done = CliRunner().invoke(app, ["report", str(folder), "--csv", str(tmp_path / "rows.txt")])
    assert done.exit_code == 0, done.output
    with (tmp_path / "rows.txt").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = load_records(folder)
    assert list(rows[0]) == list(dict.fromkeys(name for row in expected for name in row))
    assert [(row["record"], float(row["accuracy"])) for row in rows] == [(r["record"], 0.5) for r in expected]
    assert (folder / "report.html").exists()


def fail_halfway(target: Path) -> None:
    with saving(target) as part:
        part.write_text("half")
        assert target.read_text() == "first"
        raise RuntimeError


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "note.json"
    save_file(target, "first")
    with pytest.raises(RuntimeError):
        fail_halfway(target)
    assert target.read_text() == "first"
    save_file(target, "zwölf".encode())
    assert target.read_text("utf-8") == "zwölf"
    assert os.listdir(tmp_path) == ["note.json"]


def test_temporary_names_differ_and_keep_the_suffix(tmp_path: Path) -> None:
    with saving(tmp_path / "a.npy") as first, saving(tmp_path / "a.npy") as second:
        assert first != second
        for part in (first, second):
            assert part.parent == tmp_path and part.suffix == ".npy" and part.name.startswith(".")
            np.save(part, np.arange(3))  # numpy would append the suffix
    assert os.listdir(tmp_path) == ["a.npy"]


def test_parts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.0123456789abcdef.part.npy").write_text("half")
    (tmp_path / "a.npy").write_text("whole")
    remove_parts(tmp_path)
    assert os.listdir(tmp_path) == ["a.npy"]


def test_parts_of_files_with_the_same_stem_are_kept(tmp_path: Path) -> None:
    for suffix in (".csv", ".parquet"):
        (tmp_path / f".a.0123456789abcdef.part{suffix}").write_text("half")
    remove_parts(tmp_path, tmp_path / "a.csv")
    assert os.listdir(tmp_path) == [".a.0123456789abcdef.part.parquet"]


def test_a_lock_hides_no_errors_of_the_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"), locked(tmp_path / "a"):
        (tmp_path / "absent").read_bytes()
    with locked(tmp_path / "a"), pytest.raises(DataError, match="Another process"), locked(tmp_path / "a"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Cannot write to .*choose another folder"), locked(tmp_path / "file"):
        pass
