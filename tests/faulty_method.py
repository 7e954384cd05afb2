"""What needs torch: a method whose first tries fail, and the threads of a worker."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from faulty import Job, fail

from tta_panda import FrozenMethod
from tta_panda.executors import Report


def count_threads(_job: Job, _report: Report) -> tuple[int, int]:
    """The number of threads that torch may use, and the process."""
    return torch.get_num_threads(), os.getpid()


class Faulty(FrozenMethod):
    """Zero-shot CLIP that fails first."""

    kind: str = "raise"
    folder: str = ""
    times: int = 1

    def _adapt(self, encoded):
        fail(self.kind, Path(self.folder), self.times)
        return self.classify(encoded)
