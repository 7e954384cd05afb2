"""The interface of all engines: tasks in, results or reasons why there are none out.

A task whose worker dies, or that raises what is no error of this package, is tried again, and in the end reported; the
others go on. Errors that users have to mend, such as a name that is unknown, are raised at once.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from tta_panda.errors import StoreError, TtaPandaError, TtaPandaWarning

TRIES = 3
"""How often a task is tried, and how often in a row a worker may fail to start."""

Task = TypeVar("Task")
Result = TypeVar("Result")


class Work(ABC, Generic[Task, Result]):
    """What is done with every task. Each worker gets it once, and it keeps there what tasks have in common."""

    def prepare(self) -> None:
        """Called first in every other process, and never in this one: it may change settings of the whole process."""

    @abstractmethod
    def __call__(self, task: Task, advance: Callable[[float], None]) -> Result:
        """Do one task; `advance` is told which share of it was just done."""


class Done(NamedTuple, Generic[Task, Result]):
    """A task and what came of it."""

    task: Task
    result: Result


class Failed(NamedTuple, Generic[Task]):
    """A task that was tried in vain, and the last reason why."""

    task: Task
    reason: str


Settled = Generator[Done[Task, Result] | Failed[Task], None, None]
"""All tasks, each as soon as it is settled, in any order."""

Advance = Callable[[Task, float], None]
"""Called with a task and the share of it that was just done."""


class Engine(ABC):
    """Does tasks in some place."""

    workers: int | None
    """How many tasks are done at a time; None for as many as there is room for."""

    @abstractmethod
    def run(self, work: Work[Task, Result], tasks: Sequence[Task], advance: Advance[Task]) -> Settled[Task, Result]:
        """Do all tasks. Closing the generator ends what is under way."""


class Failure(NamedTuple):
    """Why a try gave no result."""

    reason: str


class Refusal(NamedTuple):
    """An error that no other try will mend."""

    error: TtaPandaError


Answer = Any
"""What a try gives: the result, a `Failure` or a `Refusal`. A worker answers whatever happens, unless it dies."""


def answer(work: Work[Task, Result], task: Task, advance: Callable[[float], None] = lambda _share: None) -> Answer:
    """Try a task."""
    return _answered(lambda: work(task, advance))


def prepare_worker(work: Work[Any, Any], threads: int) -> Answer:
    """Make a process ready for tasks."""
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", TtaPandaWarning)  # the main process has planned the work, and said it
    return _answered(work.prepare)


def _answered(function: Callable[[], Answer]) -> Answer:
    try:
        return function()
    except StoreError as error:  # the disk of one worker may be full, or unreachable
        return Failure(str(error))
    except TtaPandaError as error:
        return Refusal(error)
    except Exception as error:
        frame = error.__traceback__
        while frame and frame.tb_next:
            frame = frame.tb_next
        place = f" ({Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno})" if frame else ""
        return Failure(f"{type(error).__name__}: {error}{place}")


def settle(task: Task, answered: Answer) -> Done[Task, Any] | Failed[Task]:
    """What an answer means for its task; raises what users have to mend."""
    if isinstance(answered, Refusal):
        raise answered.error
    return Failed(task, answered.reason) if isinstance(answered, Failure) else Done(task, answered)
