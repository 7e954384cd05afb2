"""A static page of results that several people have handed in: methods × data sets, one table for each protocol."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from tta_panda.data import CLEAN, DATASETS
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import StoreError
from tta_panda.evaluation.config import MethodConfig, StreamConfig
from tta_panda.evaluation.metrics import prediction_bias
from tta_panda.evaluation.plan import Sources, data_size
from tta_panda.evaluation.record import Measurement, RunRecord
from tta_panda.evaluation.store import RECORD_NAME, RunStore
from tta_panda.files import save_file
from tta_panda.reporting.cells import ACCURACY, Cell
from tta_panda.reporting.comparison import Comparison, compare, method_label
from tta_panda.reporting.exchange import ClipBenchmarkResult, read_clip_benchmark
from tta_panda.reporting.page import templates
from tta_panda.reporting.tables import SD_NOTE, Column

_MEASURED = ("data", "fingerprint", "corruption", "severity", "seed")
"""Fields of a stream that say what was measured. All others are its protocol."""

_STATED = [each.name for each in fields(StreamConfig) if each.name not in ("ignore_orientation", "window")]
"""Fields that headers show even if they have their default value."""

_MAX_NAMED = 3
"""If a mean is over more corruptions, the head of its column has their number, and one digest of their fingerprints."""


class Submission(NamedTuple):
    """A valid file, and who handed it in."""

    person: str
    path: Path
    content: RunRecord | ClipBenchmarkResult


@dataclass(frozen=True)
class Entry:
    """A number on the page, and the files that it was computed from."""

    model: str
    protocol: str
    column: str
    method: MethodConfig
    person: str
    cell: Cell
    files: Sequence[tuple[str, Path]]


def read_submissions(root: Path) -> tuple[list[Submission], dict[Path, str]]:
    """Read and check all JSON files in the folders of `root`, one for each person.

    Returns:
        The valid ones, and what is wrong with each of the others.
    """
    people = sorted(path for path in root.glob("[!.]*") if path.is_dir())
    valid: list[Submission] = []
    problems: dict[Path, str] = {}
    labels: dict[StreamConfig, tuple[list[int], Path]] = {}
    for person in people:
        for path in sorted(person.rglob("*.json")):
            try:
                is_record = RECORD_NAME.fullmatch(path.name)
                content = _read_record(path, labels) if is_record else read_clip_benchmark(path)
                valid.append(Submission(person.name, path, content))
            except StoreError as error:
                problems[path] = str(error)
    if not valid and not problems:
        raise StoreError(
            f"There are no records in folders below {root}, which should hold one folder for each person. "
            f"Make records with: tta-panda bench -o {root / 'your-name'}"
        )
    return valid, problems


def _read_record(path: Path, labels: dict[StreamConfig, tuple[list[int], Path]]) -> RunRecord:
    """Read and check a record; `labels` has the label counts of earlier ones by stream, to which it is added."""
    record = RunStore.read(path, path.stem)
    if record is None:
        raise StoreError(
            f"{path} is not a valid record of the run whose key is its name: it was edited, cut short or renamed."
        )
    if fault := next(_faults(record), None):
        raise StoreError(f"{path} contradicts itself: {fault}.")
    images = replace(record.config.stream, model="", weights=None, precision="fp32", backend="torch", templates="photo")
    counts, earlier = labels.setdefault(images, (record.label_counts, path))
    if counts != record.label_counts:
        raise StoreError(f"{path} has other label counts than {earlier}, whose images should be the same.")
    return record


def _faults(record: RunRecord) -> Iterator[str]:
    """Say what is impossible in a record whose fields are of the right types."""
    stream, classes = record.config.stream, len(record.class_names)
    order = stream.parsed_order
    for name, measured in {"stream": record, **record.domains}.items():
        yield from (f"{fault} ({name})" for fault in _faults_of(measured, classes))
    for name, parts in (("domains", list(record.domains.values())), ("tenths", record.tenths)):
        if parts and (total := sum(part.samples for part in parts)) != record.samples:
            yield f"its {name} have {total} images, and the stream has {record.samples}"
    if stream.data in DATASETS and DATASETS.get(stream.data).size and not (stream.image_list or stream.unknown_classes):
        source, (images, expected) = DATASETS.get(stream.data), data_size(stream, Sources(stream.model))
        if classes != expected:
            yield f"{stream.data} has {expected} classes, not {classes}"
        images *= len(stream.corruptions) * len(order.severities(stream.severity)) * order.rounds
        if record.samples > images or (record.samples < images and not source.image_files):  # which may be broken
            yield f"{stream.title()} has {images} images, not {record.samples}"


def _faults_of(measured: Measurement, classes: int) -> Iterator[str]:
    by_class = measured.predicted_counts, measured.label_counts, measured.mean_probabilities
    if any(len(each) != classes for each in by_class):
        yield f"the counts by class are not those of {classes} classes"
        return
    for counts in by_class[:2]:
        if sum(counts) != measured.samples:
            yield f"the counts by class sum to {sum(counts)}, not to the {measured.samples} images"
    hits = measured.accuracy * measured.samples
    if abs(hits - round(hits)) > 1e-6 or hits > sum(map(min, zip(*by_class[:2], strict=True))) + 1e-6:
        yield f"the counts by class do not allow the accuracy {measured.accuracy}"
    bias = prediction_bias(np.array(by_class[2]), np.array(by_class[1]) / max(1, measured.samples))
    if abs(bias - measured.bias) > 1e-6:
        yield f"the mean probabilities give the bias {bias:.6f}, not {measured.bias:.6f}"


def make_entries(submissions: Iterable[Submission]) -> list[Entry]:
    """Compute all numbers of the page. Only seeds and corruptions are averaged."""
    entries = []
    alike: dict[tuple[str, str], dict[str, tuple[Path, RunRecord]]] = {}
    for person, path, content in submissions:
        if isinstance(content, RunRecord):
            alike.setdefault((person, content.weights_hash), {})[content.config.key] = path, content
        else:
            entries.append(_entry_of_clip_benchmark(person, path, content))
    for (person, weights), found in alike.items():
        paths = {key: path for key, (path, _) in found.items()}
        for comparison in compare(record for _, record in found.values()):
            for method in comparison.methods:
                corruptions = [name for name in comparison.corruptions if comparison.runs(method, name)]
                for names in ([CLEAN] if comparison.runs(method, CLEAN) else [], corruptions):
                    if names:
                        entries.append(_entry(person, weights, comparison, method, names, paths))
    return list({(each.model, each.protocol, each.column, each.person, each.method): each for each in entries}.values())


def _entry(
    person: str,
    weights: str,
    comparison: Comparison,
    method: MethodConfig,
    corruptions: Sequence[str],
    paths: dict[str, Path],
) -> Entry:
    runs = {run.key: run.stream for name in corruptions for run in comparison.runs(method, name)}
    first = next(iter(runs.values()))
    shown = ", ".join(corruptions) if len(corruptions) <= _MAX_NAMED else f"mean of {len(corruptions)} corruptions"
    if _MAX_NAMED < len(corruptions) < len(CORRUPTIONS) and set(corruptions) < set(CORRUPTIONS):
        shown += f" (without {', '.join(name for name in CORRUPTIONS if name not in corruptions)})"
    column = f"{first.data}, {shown}" + (f", severity {first.severity}" if first.severity else "")
    fingerprints = sorted({stream.fingerprint for stream in runs.values() if stream.fingerprint})
    if len(fingerprints) > _MAX_NAMED:
        fingerprints = [hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:12]]
    if fingerprints:
        column += f" [{', '.join(fingerprints)}]"
    joined = first.parsed_order.joins_domains  # then their order is part of the protocol
    omitted = [name for name in (*_MEASURED, "model", "weights") if not (joined and name == "corruption")]
    return Entry(
        model=first.model,
        protocol=f"{first.title(_STATED, omit=omitted)}, weights {weights}",
        column=column,
        method=method,
        person=person,
        cell=comparison.mean(method, ACCURACY, corruptions),
        files=[(f"{stream.corruption}, seed {stream.seed}", paths[key]) for key, stream in runs.items()],
    )


def _entry_of_clip_benchmark(person: str, path: Path, result: ClipBenchmarkResult) -> Entry:
    model = f"{result.model}:{result.pretrained}"
    return Entry(
        model=model,
        protocol=f"CLIP_benchmark's {result.task}, language {result.language}",
        column=result.dataset,
        method=MethodConfig(name="zero-shot", options={}),
        person=person,
        cell=Cell(ACCURACY.factor * result.metrics.acc1),
        files=[(path.stem, path)],
    )


def write_leaderboard(page: Path, entries: Sequence[Entry], problems: dict[Path, str]) -> Path:
    """Write the page, which links to the files."""
    by_protocol: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        by_protocol.setdefault((entry.model, entry.protocol), []).append(entry)
    tables = [_table(found, page.parent) for _, found in sorted(by_protocol.items(), key=lambda item: item[0])]
    template = templates().get_template("leaderboard.html.j2")
    problems_shown = {_link(path, page.parent): text for path, text in problems.items()}
    return save_file(page, template.render(tables=tables, problems=problems_shown, sd_note=SD_NOTE))


def _table(entries: Sequence[Entry], folder: Path) -> dict[str, Any]:
    """What the template needs: columns with the most numbers come first, and rows with the highest in the first one."""
    found = [each.column for each in entries]
    columns = sorted(dict.fromkeys(found), key=lambda name: (-found.count(name), name))
    rows: dict[tuple[MethodConfig, str], dict[str, Entry]] = {}
    for entry in entries:
        rows.setdefault((entry.method, entry.person), {})[entry.column] = entry
    numbers = Column.of(ACCURACY, "")

    def shown(entry: Entry | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        files = [(name, _link(path, folder)) for name, path in entry.files]
        seeds = len(entry.cell.by_seed)
        return {"text": numbers.text(entry.cell), "spread": numbers.spread(entry.cell), "seeds": seeds, "files": files}

    def score(row: dict[str, Entry]) -> float:
        best = row.get(columns[0])
        return -1.0 if best is None or best.cell.value is None else best.cell.value

    ordered = sorted(rows.items(), key=lambda item: (-score(item[1]), item[0][0].name, item[0][1]))
    return {
        "model": entries[0].model,
        "protocol": entries[0].protocol,
        "columns": columns,
        "rows": [
            {
                "method": method_label(method, (each for each, _ in rows)),
                "options": ", ".join(f"{name}={value}" for name, value in method.options.items()),
                "person": person,
                "cells": [shown(row.get(column)) for column in columns],
            }
            for (method, person), row in ordered
        ],
    }


def _link(path: Path, folder: Path) -> str:
    return quote(os.fsencode(Path(os.path.relpath(path, folder)).as_posix()))  # names need not be valid text
