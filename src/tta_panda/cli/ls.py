"""`tta-panda ls`: what there is, by kind."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tta_panda.cli.common import print_json, print_rows
from tta_panda.cli.options import JsonOption
from tta_panda.errors import UnknownNameError
from tta_panda.progress import make_console

Rows = list[dict[str, Any]]


def ls(
    kind: Annotated[
        str, typer.Argument(help="methods, models, data, presets, experiments or corruptions.")
    ] = "methods",
    pattern: Annotated[str, typer.Argument(help="Shell wildcard, as in 'ViT-B*'.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List methods with their options, models, data sets, presets, experiments or corruptions.

    \b
    Examples:
      tta-panda ls methods
      tta-panda ls models 'ViT-B*' --json
    """
    if kind not in _KINDS:
        raise UnknownNameError("kind of list", kind, _KINDS)
    rows = [row for row in _KINDS[kind](pattern) if fnmatch.fnmatchcase(row["name"], pattern)]
    if as_json:
        print_json(rows)
        return

    console = make_console()
    if rows:
        print_rows(console, [{key: _short(key, value) for key, value in row.items()} for row in rows])
    else:
        console.print(f"No {kind} match {pattern!r}.")


def _short(key: str, value: Any) -> Any:
    """Numbers of parameters in millions, and a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.1f} M" if key == "parameters" else value


def _methods(pattern: str) -> Rows:
    from tta_panda.methods import DEBIASES, METHODS, list_methods, parse_method
    from tta_panda.methods.factory import debias_options, default_options

    names = list_methods() if "+" in pattern else list(METHODS)
    rows = [{"name": name, "options": default_options(parse_method(name))} for name in names]
    shared = {name: {key: option.default for key, option in debias_options(name).items()} for name in DEBIASES}
    return [*rows, *({"name": f"NAME+{name}", "options": options} for name, options in shared.items())]


def _models(pattern: str) -> Rows:
    from tta_panda.models.names import describe_models

    return describe_models(pattern)


def _data(_pattern: str) -> Rows:
    from tta_panda.data import DATASETS

    return [{"name": name, "about": DATASETS.get(name).about} for name in DATASETS]


def _presets(_pattern: str) -> Rows:
    from tta_panda.methods.presets import PRESETS

    rows: Rows = []
    for preset in PRESETS.values():
        facts = {"name": preset.name, "model": preset.model, "templates": preset.templates}
        rows += [{**facts, "method": method, "options": options} for method, options in preset.methods.items()]
    return rows


def _experiments(_pattern: str) -> Rows:
    from tta_panda.experiments import EXPERIMENTS
    from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup

    full, quick = Setup(seeds=[0]), Setup(quick=True, seeds=[0])  # every run is made with every seed
    rows: Rows = []
    for name, experiment in EXPERIMENTS.items():
        facts = {"about": f"{experiment.title}. {experiment.about}", "in the paper": experiment.in_paper or None}
        runs = {
            "runs": len(experiment.runs(full)) * len(experiment.defaults.get("seeds", PAPER_SEEDS)),
            "quick": len(experiment.runs(quick)) * len(QUICK_SEEDS),
        }
        rows.append({"name": name, **facts, **runs, "needs": experiment.needs(full)})
    return rows


def _corruptions(_pattern: str) -> Rows:
    from tta_panda.data.corruptions import ALL_GROUPS

    return [{"name": name, "group": group} for group, names in ALL_GROUPS.items() for name in names]


_KINDS: dict[str, Callable[[str], Rows]] = {
    "methods": _methods,
    "models": _models,
    "data": _data,
    "presets": _presets,
    "experiments": _experiments,
    "corruptions": _corruptions,
}
