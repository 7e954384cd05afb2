"""The options that say where work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.plan import Sources
    from tta_panda.executors import Executor

LOCAL, RAY = "local", "ray"

IMAGES_WORTH_A_PROCESS = 10_000


EngineOption = Annotated[
    str, typer.Option("--engine", help="local: this machine; ray: a Ray cluster (pip install tta-panda[ray]).")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes to spread the work over.", show_default="by size")
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Of a running Ray cluster; auto: that of this machine.", show_default="start one"),
]
GpusOption = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker",
        min=0,
        help="With Ray; a fraction lets workers share a GPU.",
        show_default="1, or 0 without GPUs",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or mps; auto: the best one that is available.")]


@dataclass(frozen=True)
class EngineOptions:
    """Where work is done, and on how many workers."""

    engine: str = LOCAL
    workers: int | None = None
    address: str | None = None
    gpus_per_worker: float | None = None
    device: str = "auto"

    def checked_engine(self) -> str:
        """The name of the engine, unless options belong to the other one."""
        if self.engine not in (LOCAL, RAY):
            raise UnknownNameError("engine", self.engine, (LOCAL, RAY))
        for name, value in (("--address", self.address), ("--gpus-per-worker", self.gpus_per_worker)):
            if value is not None and self.engine != RAY:
                raise InvalidInputError(f"{name} belongs to a cluster: type --engine ray as well, or omit it.")
        return self.engine

    def usable_device(self) -> str:
        """Where models run: resolved on this machine, unless workers are on others, which resolve it themselves."""
        from tta_panda.models.devices import resolve_device

        return self.device if self.checked_engine() == RAY else resolve_device(self.device)

    def make_executor(self, workers: int) -> Executor:
        """The executor that was asked for; `workers` where that was left open, and this machine does the work."""
        if self.checked_engine() == RAY:
            from tta_panda.ray_executor import RayExecutor

            gpus = 0.0 if self.device == "cpu" else self.gpus_per_worker
            return RayExecutor(self.address, self.workers, gpus)
        from tta_panda.executors import local_executor

        return local_executor(self.workers or workers)


def default_workers(configs: Sequence[RunConfig], sources: Sources, device: str) -> int:
    """One process per core for long work with a model that is too small for threads to pay; else one."""
    from tta_panda.executors import available_cores
    from tta_panda.models import model_source

    if device != "cpu" or not model_source(sources.model).small:
        return 1
    images = sum((config.stream.limit or 1000) * len(config.stream.visits) for config in configs)
    return max(1, min(available_cores(), images // IMAGES_WORTH_A_PROCESS))
