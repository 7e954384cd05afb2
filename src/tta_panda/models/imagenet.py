"""ImageNet's classes by name, for heads that were trained on all of them: a name stands for one row or for several."""

from __future__ import annotations

import difflib
import functools
import warnings
from collections import defaultdict
from collections.abc import Sequence

from tta_panda.errors import InvalidInputError, TtaPandaWarning

CLASSES = 1000
_SHOWN = 8

_KINDS: dict[str, Sequence[int]] = {
    "fish": [*range(7), *range(389, 398)],
    "bird": [*range(7, 25), *range(80, 101), *range(127, 147)],
    "frog": range(30, 33),
    "turtle": range(33, 38),
    "lizard": range(38, 49),
    "snake": range(52, 69),
    "spider": range(72, 78),
    "dog": range(151, 269),
    "cat": range(281, 286),
    "bear": range(294, 298),
    "insect": range(300, 327),
    "ape": range(365, 370),
    "monkey": range(370, 383),
    "airplane": [404, 895],
    "boat": [472, 554, 576, 625, 814, 914],
    "car": [407, 436, 468, 511, 609, 627, 656, 661, 751, 817],
}
"""Rows of each kind, of cats the domestic ones; the last word of a class does not say it: a hot dog is no dog."""


def imagenet_rows(name: str) -> Sequence[int]:
    """The rows of a class, by the first of these that fits, whether letters are small or capital.

    Its name as CLIP spells it, or its WordNet number; a kind of things (`"dog"`: all breeds); a synonym that WordNet
    has for one class; the last words of names (`"truck"`: fire truck, pickup truck, ...). A note says what a name that
    is not the class's own stands for.
    """
    key = name.lower()
    own = _own_names()
    rows = own.get(key) or _KINDS.get(key) or _only_synonym(key)
    rows = rows or [row for known, rows in own.items() if known.endswith(f" {key}") for row in rows]
    if not rows:
        raise InvalidInputError(f"{name!r} is none of ImageNet's classes. {_near(key)}")
    if key not in own or len(rows) > 1:
        mean = "the mean of the rows of " if len(rows) > 1 else ""
        warnings.warn(f"The class {name!r} is {mean}{_listed(rows)}.", TtaPandaWarning, stacklevel=2)
    return rows


@functools.cache
def _own_names() -> dict[str, list[int]]:
    """Rows by name and by WordNet number. Two names of CLIP's stand for two classes each."""
    import open_clip
    import timm

    found = defaultdict(list)
    for row, name in enumerate(open_clip.IMAGENET_CLASSNAMES):
        found[name.lower()].append(row)
    return {**found, **{number: [row] for row, number in enumerate(timm.data.ImageNetInfo().label_names())}}


def _only_synonym(key: str) -> list[int]:
    rows = _synonyms().get(key, [])
    if len(rows) > 1:
        raise InvalidInputError(f"{key!r} can mean several of ImageNet's classes: {_listed(rows)}. Write which one.")
    return rows


@functools.cache
def _synonyms() -> dict[str, list[int]]:
    """Rows by what WordNet calls them."""
    import timm

    found = defaultdict(list)
    for row, synonyms in enumerate(timm.data.ImageNetInfo().label_descriptions()):
        for synonym in synonyms.lower().split(", "):
            found[synonym].append(row)
    return found


def _listed(rows: Sequence[int]) -> str:
    import open_clip

    names = [open_clip.IMAGENET_CLASSNAMES[row] for row in rows]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _near(key: str) -> str:
    known = [*_own_names(), *_KINDS, *_synonyms()]
    containing = [name for name in known if key in name.split()]
    near = dict.fromkeys([*difflib.get_close_matches(key, known, n=3, cutoff=0.7), *containing])
    hint = f"Near: {', '.join(list(near)[:_SHOWN])}. " if near else ""
    return f"{hint}open_clip.IMAGENET_CLASSNAMES lists them; LinearClassifier(..., rows=[...]) takes any rows."
