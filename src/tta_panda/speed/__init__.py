"""What `tta-panda speed` measures: ways to do the same work, side by side in one run."""

from __future__ import annotations

from collections.abc import Callable

from tta_panda.registry import Registry
from tta_panda.speed.measure import Advance, Clock, Report, Settings, Timings, take_turns

Topic = Callable[[Settings, Advance], Report]

TOPICS: Registry[Topic] = Registry(
    "topic",
    {
        "methods": "tta_panda.speed.methods:measure_methods",
        "panda": "tta_panda.speed.panda:measure_panda",
        "growth": "tta_panda.speed.growth:measure_growth",
        "views": "tta_panda.speed.views:measure_views",
        "backends": "tta_panda.speed.backends:measure_backends",
        "stream": "tta_panda.speed.stream:measure_stream",
        "memory": "tta_panda.speed.memory:measure_memory",
        "soak": "tta_panda.speed.soak:measure_soak",
        "corruptions": "tta_panda.speed.corruptions:measure_corruptions",
        "sweep": "tta_panda.speed.sweep:measure_sweep",
    },
)

__all__ = ["TOPICS", "Advance", "Clock", "Report", "Settings", "Timings", "Topic", "take_turns"]
