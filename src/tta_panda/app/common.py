"""Helpers of several tabs: shared models, lists to choose from, and errors shown on the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from typing import Any

import gradio as gr

from tta_panda.app.drawing import cell
from tta_panda.data import CLEAN, DATASETS
from tta_panda.data.corruptions import ALL_CORRUPTIONS
from tta_panda.errors import TtaPandaError
from tta_panda.evaluation.config import EMBEDDED
from tta_panda.evaluation.metrics import StreamMetrics
from tta_panda.methods import DEBIASES, METHODS, parse_method
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.reporting.cells import BIAS

DOMAINS = (("none", CLEAN), *((name.replace("_", " "), name) for name in ALL_CORRUPTIONS))
"""Labels and names of the corruptions to choose from."""
LABELS = "labels"
MINI = EMBEDDED.model
"""Name of the model for embedded data."""
NO_DEBIASING = "none"
NO_PROGRESS: Any = {"queue": False, "show_progress": "hidden"}
"""Options of events that take milliseconds."""


def embedded_data() -> list[str]:
    """Names of the data sets that come with the package."""
    return [name for name in DATASETS if DATASETS.get(name).embedded]


@lru_cache(maxsize=3)  # models may be large
def shared_model(name: str) -> ImageModel:
    """Load a model by name, once for all visitors of the page: methods never change it."""
    return load_model(name, device="auto")


@lru_cache(maxsize=8)
def shared_classifier(model: str, class_names: tuple[str, ...]) -> Classifier:
    """Make the classifier of a model and classes, once."""
    return make_classifier(shared_model(model), class_names)


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show the messages of this package's errors on the page."""
    try:
        yield
    except TtaPandaError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from error


def split_names(text: str) -> list[str]:
    """Split class names at commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def quantity(number: int, thing: str) -> str:
    """Format a number and a noun: "1 picture", "1,000 pictures"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def add_method_fields(label: str, name: str, min_width: int = 140) -> tuple[gr.Dropdown, gr.Dropdown]:
    """Add fields for a method and its debiasing, whose values `method_name` combines."""
    chosen = parse_method(name)
    method = gr.Dropdown(list(METHODS), value=chosen.base, label=label, min_width=min_width)
    debiasing = gr.Dropdown(
        [NO_DEBIASING, *DEBIASES], value=chosen.debias or NO_DEBIASING, label="Debiasing", min_width=min_width
    )
    return method, debiasing


def method_name(method: str, debiasing: str) -> str:
    return method if debiasing == NO_DEBIASING else f"{method}+{debiasing}"


def metric_cells(metrics: StreamMetrics | None) -> list[str]:
    if metrics is None:
        return [cell("–"), cell("–")]
    return [cell(f"{metrics.accuracy:.1%}"), cell(f"{metrics.bias:.{BIAS.decimals}f}")]
