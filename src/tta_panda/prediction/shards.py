"""Pictures divided among workers: each shard is a stream of its own, which the method meets in its first state.

Finished shards are kept in a folder beside the output, and joined in order when all are there. A resumed job makes
those that are missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tta_panda.errors import StoreError, WorkerError
from tta_panda.executors import Executor, Report
from tta_panda.files import make_writable, remove_parts, save_file
from tta_panda.prediction.files import Row, file_format
from tta_panda.prediction.job import PredictionJob
from tta_panda.prediction.recipe import Predictor, Recipe
from tta_panda.prediction.resuming import SHARDS, chained, check_pictures, check_settings, has_work, unfinished
from tta_panda.prediction.summary import Summary


class Shard(NamedTuple):
    """Pictures in a row; `first` is the place of the first of them."""

    first: int
    paths: tuple[str, ...]

    def __str__(self) -> str:
        return f"pictures {self.first + 1:,} to {self.first + len(self.paths):,}"


@dataclass
class ShardPrediction:
    """Predicts shards; model and method are made once per worker."""

    recipe: Recipe
    batch_size: int

    @cached_property
    def _predictor(self) -> Predictor:
        return self.recipe.make()

    def __getstate__(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "batch_size": self.batch_size}

    def __call__(self, task: Shard, report: Report) -> dict[str, Any]:
        method, decoder, label_of = self._predictor
        method.reset()
        job = PredictionJob(method, decoder, self.batch_size, {}, label_of)
        rows: list[Row] = []
        for batch in job.run(task.paths):
            rows += batch
            report(len(batch) / len(task.paths))
        return {"rows": rows, "summary": job.summary.to_json()}


@dataclass
class ShardedJob:
    """Paths to rows, on an executor.

    Args:
        work: what predicts a shard.
        executor: where.
        output: file for the rows.
        shard_size: pictures of a shard.
    """

    work: ShardPrediction
    executor: Executor
    output: Path
    shard_size: int
    summary: Summary | None = None
    """Of all pictures, when they are predicted."""

    @property
    def folder(self) -> Path:
        """Holds finished shards. Exists while the job is not finished."""
        return unfinished(self.output, SHARDS)

    def start(self, paths: Sequence[str], *, resume: bool = False) -> bool:
        """Divide the pictures. False where the output is complete already."""
        self.shards = [
            Shard(first, tuple(paths[first : first + self.shard_size]))
            for first in range(0, len(paths), self.shard_size)
        ]
        if not has_work(self.output, SHARDS, resume=resume):
            return False
        make_writable(self.folder, "write predictions to", "Choose another --output.")
        remove_parts(self.folder)
        self._check_or_write_plan()
        return True

    def _check_or_write_plan(self) -> None:
        digest = ""
        for shard in self.shards:
            for path in shard.paths:
                digest = chained(digest, path)
        settings = {**self.work.recipe.settings(), "batch size": self.work.batch_size, "shard size": self.shard_size}
        plan = self.folder / "plan.json"
        if not plan.exists():
            save_file(plan, json.dumps({"settings": settings, "digest": digest}, indent=1))
            return
        begun = json.loads(plan.read_text(encoding="utf-8"))
        check_settings(self.output, begun["settings"], settings)
        check_pictures(self.output, begun["digest"], digest)

    def run(self, advance: Callable[[float], None]) -> dict[Shard, str]:
        """Predict what is missing, and write the output if nothing failed; returns what did, and why.

        `advance` is told how many pictures were predicted.
        """
        missing = [shard for shard in self.shards if not self._path(shard).exists()]
        advance(sum(len(shard.paths) for shard in self.shards) - sum(len(shard.paths) for shard in missing))
        failed: dict[Shard, str] = {}
        with closing(
            self.executor.run(self.work, missing, lambda shard, share: advance(share * len(shard.paths)))
        ) as finished:
            for shard, result in finished:
                if isinstance(result, StoreError | WorkerError):
                    failed[shard] = str(result)
                else:
                    save_file(self._path(shard), json.dumps(result))
        if not failed:
            self._join()
        return failed

    def _path(self, shard: Shard) -> Path:
        return self.folder / f"{shard.first:012d}.json"

    def _join(self) -> None:
        """The folder is removed when all else is written: until then, the job can be resumed."""
        file = file_format(self.output)(self.output)
        for shard in self.shards:
            result = json.loads(self._path(shard).read_bytes())
            file.write(result["rows"])
            self._count(Summary.from_json(result["summary"]))
        file.finish()
        if file.growing != self.output:
            file.growing.unlink()
        shutil.rmtree(self.folder)

    def _count(self, part: Summary) -> None:
        if self.summary is None:
            self.summary = part
        else:
            self.summary.add_part(part)
