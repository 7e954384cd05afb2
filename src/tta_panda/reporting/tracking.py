"""Log records with an experiment tracker: wandb or trackio, of which it uses what both have."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from dataclasses import asdict
from typing import Any

from tta_panda.errors import TtaPandaWarning, UnknownNameError, missing_extra
from tta_panda.evaluation.record import Measurement, RunRecord

TRACKERS = ("trackio", "wandb")

PROJECT = "tta-panda"


class Tracker:
    """Logs each record as a run: a line for each tenth of its stream, then one for the whole.

    If logging fails, a warning says so and later records are not logged: the evaluation does not stop.
    """

    def __init__(self, name: str):
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
        try:
            self._module: Any = importlib.import_module(name)
        except ImportError as error:
            raise missing_extra(f"--log {name} needs", name) from error
        self._works = True

    def __call__(self, record: RunRecord) -> None:
        if not self._works:
            return
        try:
            with contextlib.redirect_stdout(sys.stderr):  # trackers print, and stdout may be one JSON document
                self._log(record)
        except Exception as error:
            self._works = False
            message = f"{self._module.__name__} cannot log {record.config}: {error}. Records are saved, but not logged."
            warnings.warn(message, TtaPandaWarning, stacklevel=2)

    def _log(self, record: RunRecord) -> None:
        config = record.config
        settings = {**asdict(config.stream), "method": config.method.name, **config.method.options}
        self._module.init(project=PROJECT, name=f"{config} {config.key}", config={**settings, "record": config.key})
        try:
            for number, tenth in enumerate(record.tenths, 1):
                self._module.log({"tenth": number} | _numbers(tenth, "tenth/"))
            whole = _numbers(record)
            for domain, measured in record.domains.items():
                whole |= _numbers(measured, f"{domain}/")
            self._module.log(whole | {"seconds": record.seconds, "images_per_second": record.images_per_second})
        finally:
            self._module.finish()


def _numbers(measured: Measurement, prefix: str = "") -> dict[str, float]:
    """The metrics that are single numbers."""
    fields = {name: getattr(measured, name) for name in Measurement.model_fields}
    return {f"{prefix}{name}": value for name, value in fields.items() if isinstance(value, int | float)}
