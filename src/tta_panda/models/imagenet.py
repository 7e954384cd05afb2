"""ImageNet's classes by name, for heads with a row for each of them: a name stands for one row or several."""

from __future__ import annotations

import difflib
import functools
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tta_panda.errors import InvalidInputError, TtaPandaWarning

CLASSES = 1000
_SHOWN = 8
_KINDS = Path(__file__).with_name("imagenet_kinds.json")
"""First and last rows of kinds of things, of cats the domestic ones. Names do not say it: a hot dog is no dog."""


def imagenet_rows(name: str) -> Sequence[int]:
    """The rows of a class, by the first of these that fits, whatever the case of its letters.

    Its name as CLIP spells it, or its WordNet number; a kind of things (`"dog"`: all breeds); a synonym that WordNet
    has for one class; the last words of names (`"truck"`: fire truck, pickup truck, ...). A note says what a name that
    is not the class's own stands for.
    """
    key = name.lower()
    own, kinds, synonyms = _names()
    rows = own.get(key) or kinds.get(key) or synonyms.get(key, [])
    if len(rows) > 1 and key not in own and key not in kinds:
        raise InvalidInputError(f"{key!r} can mean several of ImageNet's classes: {_listed(rows)}. Write which one.")
    rows = rows or [row for known, rows in own.items() if known.endswith(f" {key}") for row in rows]
    if not rows:
        known = [*own, *kinds, *synonyms]
        containing = [name for name in known if key in name.split()]
        near = dict.fromkeys([*difflib.get_close_matches(key, known, n=3, cutoff=0.7), *containing])
        hint = f"Near: {', '.join(list(near)[:_SHOWN])}. " if near else ""
        raise InvalidInputError(
            f"{name!r} is none of ImageNet's classes. {hint}"
            "open_clip.IMAGENET_CLASSNAMES lists them; LinearClassifier(..., rows=[...]) takes any rows."
        )
    if key not in own or len(rows) > 1:
        mean = "the mean of the rows of " if len(rows) > 1 else ""
        warnings.warn(f"The class {name!r} is {mean}{_listed(rows)}.", TtaPandaWarning, stacklevel=2)
    return rows


@functools.cache
def _names() -> tuple[dict[str, list[int]], dict[str, list[int]], dict[str, list[int]]]:
    """Rows by CLIP's name or WordNet's number, by kind, and by WordNet's synonyms."""
    import open_clip
    import timm

    info = timm.data.ImageNetInfo()
    clip_names = (name.lower() for name in open_clip.IMAGENET_CLASSNAMES)
    own = _rows_by_name(zip(clip_names, info.label_names(), strict=True))
    spans = json.loads(_KINDS.read_text("utf-8"))
    kinds = {kind: [row for first, last in each for row in range(first, last + 1)] for kind, each in spans.items()}
    return own, kinds, _rows_by_name(synonyms.lower().split(", ") for synonyms in info.label_descriptions())


def _rows_by_name(names: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """From the names of every row to the rows of every name; two of CLIP's names stand for two classes each."""
    found = defaultdict(list)
    for row, each in enumerate(names):
        for name in each:
            found[name].append(row)
    return dict(found)


def _listed(rows: Sequence[int]) -> str:
    import open_clip

    names = [open_clip.IMAGENET_CLASSNAMES[row] for row in rows]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
