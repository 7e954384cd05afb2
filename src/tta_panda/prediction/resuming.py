"""Whether a job that was interrupted can go on: the same output, the same settings, the same pictures."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tta_panda.errors import DataError, InvalidInputError

CHECKPOINT, SHARDS = ".checkpoint", ".shards"
"""What stands beside an output until it is complete, of a job by one process and of one by several workers."""


def unfinished(output: Path, suffix: str) -> Path:
    """What stands beside an output until it is complete."""
    return output.with_name(f"{output.name}{suffix}")


def has_work(output: Path, suffix: str, *, resume: bool) -> bool:
    """Whether there is anything to do for an output; what is there already must be wanted."""
    own = unfinished(output, suffix)
    other = unfinished(output, SHARDS if suffix == CHECKPOINT else CHECKPOINT)
    if other.exists():
        way = "several workers" if suffix == CHECKPOINT else "a single process"
        raise InvalidInputError(f"{output} was begun by {way}: resume it so, or delete {other} to begin anew.")
    if resume and not own.exists() and output.exists():
        return False
    if own.exists() and not resume:
        raise InvalidInputError(f"{output} is unfinished: type --resume to go on, or delete {own} to begin anew.")
    if output.exists() and not own.exists():
        raise InvalidInputError(f"{output} exists; choose another --output, or delete it.")
    return True


def check_settings(output: Path | None, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than an output was begun with."""
    if differing := [name for name in now if before.get(name) != now[name]]:
        name = differing[0]
        was, is_now = (reprlib.repr(each.get(name)) for each in (before, now))
        raise InvalidInputError(
            f"{output} was begun with another {name}: {was}, not {is_now}. Resume it with the same options, or begin "
            "anew with another --output."
        )


def check_pictures(output: Path | None, before: str, now: str) -> None:
    """Refuse to go on with other pictures; both are digests of their paths."""
    if before != now:
        raise DataError(
            f"The pictures are not those that {output} was begun with. Give the same ones in the same order, or begin "
            "anew with another --output."
        )


def chained(digest: str, path: str) -> str:
    """The digest of some paths, with one more."""
    return hashlib.sha256(f"{digest}\n{path}".encode(errors="surrogateescape")).hexdigest()
