"""Forged states, records and notes: whatever they hold, they are loaded or refused with an error of this package."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import TINY_OPTIONS, make_tiny
from data_files import write_clean_cifar
from pydantic import TypeAdapter, ValidationError
from records import make_record
from torch import Tensor

from tta_panda import ZeroShotClassifier
from tta_panda.data import check_data, load_data
from tta_panda.data.cifar import CIFAR10_C
from tta_panda.data.make import make_corrupted
from tta_panda.errors import InvalidInputError, TtaPandaError
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.methods import create_method
from tta_panda.methods.state import _FORMAT, _digest, load_method
from tta_panda.reporting.comparison import compare
from tta_panda.reporting.exchange import write_exchange
from tta_panda.reporting.exports import to_csv
from tta_panda.reporting.leaderboard import make_entries, read_submissions, write_leaderboard

WRONG: tuple[Any, ...] = (
    None, True, 10**30, -1, 1e400, float("nan"), "text", [], {"dict": []}, {"tensor": "absent"},
    {"list": [1, {"dict": []}]},
)  # fmt: skip


def forgeries(value: Any, count: int, seed: int = 0) -> Iterator[Any]:
    """Copies of a JSON value, each with one value replaced, or one entry of a list left out."""
    text, draw = json.dumps(value), random.Random(seed)
    for _ in range(count):
        forged = json.loads(text)
        places = list(_places(forged))
        parent, key = draw.choice(places)
        if isinstance(parent, list) and draw.random() < 0.2:
            del parent[key]
        else:
            parent[key] = draw.choice(WRONG)
        yield forged


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


@pytest.mark.parametrize("name", ["tent+panda", "tda+level", "oga", "mint+panda"])
def test_forged_states_raise_errors_of_this_package_only(name: str, tmp_path: Path, images: Tensor) -> None:
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])
    method = create_method(name, classifier, **TINY_OPTIONS.get(name.partition("+")[0], {}))
    method.adapt(images[:8])
    path, forged = tmp_path / "state", tmp_path / "forged"
    method.save(path)
    data = path.read_bytes()
    tensors = safetensors.torch.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    refused = 0
    for content in forgeries(json.loads(header["__metadata__"]["content"]), 60):
        text = json.dumps(content)
        facts = {"format": _FORMAT, "content": text, "digest": _digest(text, tensors)}
        safetensors.torch.save_file(tensors, forged, facts)
        try:
            load_method(forged, classifier)
        except TtaPandaError:
            refused += 1
    assert refused > 20


def test_a_state_changes_declared_values_only(images: Tensor) -> None:
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor", "cloud"])
    method = create_method("tent", classifier)
    method.adapt(images[:8])
    state = method.state_dict()
    assert "param_groups" not in state["state"]["weights"]["optimizer"]
    for part, value in {"adapt": None, "drift": "text", "weights": {"parameters": {}, "optimizer": {}}}.items():
        before = method.state_dict()["state"]["drift"]
        with pytest.raises(InvalidInputError):
            method.load_state_dict({**state, "state": {**state["state"], part: value}})
        assert callable(method.adapt) and torch.equal(method.drift, before)


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30, 0.5, "0"])
def test_seeds_that_generators_do_not_take_are_refused(seed: Any) -> None:
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star"])
    with pytest.raises(InvalidInputError, match="seed must be"):
        create_method("clip", classifier, seed=seed)


def test_forged_records_raise_errors_of_this_package_only(tmp_path: Path) -> None:
    """Each has the name that its configuration asks for, if it is one."""
    person = tmp_path / "people" / "ann"
    accepted = 0
    for record in (make_record("tent+panda", order="mixed", corruption="fog,snow"), make_record()):
        for content in (*forgeries(json.loads(record.model_dump_json()), 75), *_directed(record)):
            key = record.config.key
            with contextlib.suppress(ValidationError, TtaPandaError):
                key = TypeAdapter(RunConfig).validate_python(content["config"]).key
            shutil.rmtree(person, ignore_errors=True)
            person.mkdir(parents=True)
            (person / f"{key}.json").write_text(json.dumps(content))
            with contextlib.suppress(TtaPandaError):
                submissions, problems = read_submissions(tmp_path / "people")
                write_leaderboard(tmp_path / "page.html", make_entries(submissions), problems)
            with contextlib.suppress(TtaPandaError):
                records = RunStore(person).records()
                for comparison in compare(records):
                    for table in comparison.tables():
                        to_csv(table)
                [each.rows() for each in records]
                write_exchange(records, tmp_path / "export")
                accepted += len(records)
    assert 10 < accepted < 75
    assert {path.name for path in tmp_path.iterdir()} == {"people", "export", "page.html"}


def _directed(record: RunRecord) -> Iterator[Any]:
    """Forgeries that take more than one wrong value."""
    huge, content = 10**400, json.loads(record.model_dump_json())
    yield {**content, "samples": huge, "label_counts": [huge, 0], "predicted_counts": [huge, 0]}
    yield {**content, "mean_probabilities": [float("nan"), 0.3]}
    yield {**content, "domains": {}}
    yield {**content, "domains": {"absent": content["tenths"][0]}}
    ten = {"class_names": list("abcdefghij")}
    for names, order, severity in (
        *((name, "shuffled", 5) for name in ("../../../outside", "/../../outside", "\0", "x" * 300)),
        (",".join(["fog"] * 10_000), "recurring:10000", 5),
        ("fog", "gradual", 10**10),
    ):
        stream = {**content["config"]["stream"], "corruption": names, "order": order, "severity": severity}
        domains = {} if order == "shuffled" else dict.fromkeys(names.split(","), content["tenths"][0])
        yield {**content, **ten, "domains": domains, "config": {**content["config"], "stream": stream}}


def test_forged_notes_raise_errors_of_this_package_only(tmp_path: Path) -> None:
    write_clean_cifar(tmp_path / "clean", count=10)
    make_corrupted("cifar10-c", tmp_path / "clean", tmp_path, ["contrast"], [5])
    note = tmp_path / "CIFAR-10-C" / "contrast.json"
    for content in forgeries(json.loads(note.read_text()), 150):
        note.write_text(json.dumps(content))
        for use in (
            lambda: list(check_data(tmp_path)),
            lambda: load_data("cifar10-c", "contrast", 5, root=tmp_path),
            lambda: CIFAR10_C.fingerprint(tmp_path, "contrast", 5),
            lambda: make_corrupted("cifar10-c", tmp_path / "clean", tmp_path, ["contrast"], [5]),
        ):
            with contextlib.suppress(TtaPandaError):
                use()
