"""Runs divided into files, for jobs that know nothing of each other: those of a job array, say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from tta_panda import __version__
from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.cost import balance, task_cost
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.run import divide
from tta_panda.files import save_file
from tta_panda.models import canonical_name

FOLDER = "shards"


class Part(BaseModel):
    """Runs with the same model and data, whose records go to one folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: list[RunConfig]
    sources: Sources
    folder: Path = Path()
    """Below the folder of results."""
    timed: bool = False

    def tasks(self) -> list[list[RunConfig]]:
        return [[config] for config in self.runs] if self.timed else divide(self.runs)


class Shard(BaseModel):
    """What one job does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str = __version__
    parts: list[Part]
    images: float
    """What its runs cost, in images that are encoded without a gradient."""

    @property
    def runs(self) -> int:
        return sum(len(part.runs) for part in self.parts)


class ShardName(NamedTuple):
    """`3/8` taken apart."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> ShardName:
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise InvalidInputError(f"A shard is written K/N with K from 1 to N, as in 3/8; got {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def path(self, results: Path) -> Path:
        """Where the shard is, in a folder of results."""
        return results / FOLDER / f"{self.number}-of-{self.of}.json"


def write_shards(parts: Sequence[Part], count: int, results: Path) -> dict[Path, Shard]:
    """Divide runs into shards of about equal cost. Runs that share encoder passes stay together."""
    tasks = [(index, task) for index, part in enumerate(parts) for task in part.tasks()]
    if count > len(tasks):
        raise InvalidInputError(
            f"{len(tasks)} groups of runs that share encoder passes make at most {len(tasks)} shards, got {count}."
        )
    costs = [task_cost(task, parts[index].sources).in_images for index, task in tasks]
    written = {}
    for number, chosen in enumerate(balance(costs, count), start=1):
        own = [
            part.model_copy(update={"runs": [config for i in chosen if tasks[i][0] == index for config in tasks[i][1]]})
            for index, part in enumerate(parts)
        ]
        shard = Shard(parts=[part for part in own if part.runs], images=sum(costs[i] for i in chosen))
        path = ShardName(number, count).path(results)
        written[save_file(path, shard.model_dump_json(indent=1))] = shard
    return written


def read_shard(name: ShardName, results: Path) -> Shard:
    """A shard that was written to a folder of results."""
    path = name.path(results)
    try:
        return Shard.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        planned = ", ".join(sorted(each.stem for each in path.parent.glob("*-of-*.json"))) or "none"
        raise StoreError(
            f"There is no {path}; shards there: {planned}. Write them with: tta-panda plan bench --shards {name.of} -o "
            f"{results}"
        ) from None
    except (OSError, ValidationError) as error:
        raise StoreError(f"Cannot read {path} ({error}). Plan the shards again, with this version.") from error


def absolute(sources: Sources) -> Sources:
    """With paths that mean the same in any folder."""
    data, images = (path and path.expanduser().absolute() for path in (sources.data_root, sources.image_list))
    return replace(sources, model=canonical_name(sources.model), data_root=data, image_list=images)
