"""Kinds of streams that the experiments beyond the paper compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STREAMS: Mapping[str, Mapping[str, Any]] = {
    "shuffled": {},
    "batches of 10": {"batch_size": 10},
    "single images": {"batch_size": 1},
    "correlated:0.1": {"order": "correlated:0.1"},
    "sorted": {"order": "correlated:0"},
    "label_shift:0.1": {"order": "label_shift:0.1"},
    "one class": {"order": "label_shift:0"},
    "continual": {"order": "continual"},
    "mixed": {"order": "mixed"},
    "continual+correlated:0.1": {"order": "continual+correlated:0.1"},
}
"""By name, what differs from the streams of the paper: batches of shuffled images of one corruption."""

STREAMS_NOTE = (
    "Streams are named as --order takes them; sorted is correlated:0, one class is label_shift:0. Unless domains are "
    "joined (continual, mixed), methods start afresh with each corruption."
)
