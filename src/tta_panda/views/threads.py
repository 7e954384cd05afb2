"""Work on many small tensors with one thread per task, instead of all threads on each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")


def run_tasks(function: Callable[[Task], None], tasks: Sequence[Task], device: torch.device) -> None:
    """Call `function` with each task, on the CPU on as many threads as torch may use; elsewhere one after the other.

    Operations of some ten microseconds gain little from being split, and wait for the slowest part where other programs
    are running, too. Each task is computed by a single thread, so results do not depend on how many there are.
    """
    threads = min(torch.get_num_threads(), len(tasks)) if device.type == "cpu" else 1
    if threads < 2:
        for task in tasks:
            function(task)
        return
    allowed = torch.get_num_threads()
    try:
        # The number holds for the thread that sets it, and for threads that are started later.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(function, tasks):
                pass
    finally:
        torch.set_num_threads(allowed)
