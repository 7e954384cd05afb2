"""`tta-panda ls`: list methods, models, data sets and so on; without a pattern, nothing heavy is imported."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import tta_panda
from tta_panda.cli.common import print_json, print_rows
from tta_panda.cli.options import JsonOption
from tta_panda.errors import UnknownNameError
from tta_panda.progress import make_console

Rows = list[dict[str, Any]]


def ls(
    kind: Annotated[
        str, typer.Argument(help="methods, models, data, presets, experiments or corruptions.")
    ] = "methods",
    pattern: Annotated[
        str | None, typer.Argument(help="Shell wildcard such as 'ViT-B*'; shows details.", show_default="all, in short")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List methods, models, data sets, presets, experiments or corruptions.

    A pattern adds details: options and encoder passes of methods, published
    weights of models, settings of presets, runs of experiments.

    \b
    Examples:
      tta-panda ls methods
      tta-panda ls models 'ViT-B*' --json
    """
    if kind not in _KINDS:
        raise UnknownNameError("kind of list", kind, _KINDS)
    in_short, in_detail, details = _KINDS[kind]
    rows = in_short() if pattern is None else in_detail(pattern)
    rows = [row for row in rows if fnmatch.fnmatchcase(row["name"], pattern or "*")]
    if as_json:
        print_json(rows)
        return

    console = make_console()
    if rows:
        print_rows(console, [{key: _short(key, value) for key, value in row.items()} for row in rows])
    else:
        console.print(f"No {kind} match {pattern!r}.")
    if details and pattern is None:
        console.print(f"\n{details}: tta-panda ls {kind} PATTERN", soft_wrap=True)


def _short(key: str, value: Any) -> Any:
    """Shorten numbers of parameters to millions, and show unknown values as a dash."""
    if value is None:
        return "-"
    return f"{value / 1e6:,.1f} M" if key == "parameters" else value


def _methods() -> Rows:
    from tta_panda.methods import METHODS

    return [{"name": name, "about": METHODS.about(name)} for name in METHODS]


IMAGES, CLASSES = 100, 10
"""Size of the batch for which encoder passes are counted."""


def _methods_in_detail(pattern: str) -> Rows:
    from tta_panda.methods import DEBIASES, METHODS, list_methods, parse_method
    from tta_panda.methods.factory import debias_options, expected_passes, resolve_options

    rows: Rows = []
    for name in list_methods() if "+" in pattern else list(METHODS):
        if fnmatch.fnmatchcase(name, pattern):
            method = parse_method(name)
            options = resolve_options(method, {})
            counts = asdict(expected_passes(method, options, IMAGES, CLASSES))
            passes = {kind: count / IMAGES for kind, count in counts.items() if count and kind != "batches"}
            rows.append({"name": name, "about": METHODS.about(method.base), "per image": passes, "options": options})
    for name in DEBIASES:
        options = {key: option.default for key, option in debias_options(name).items()}
        rows.append({"name": f"NAME+{name}", "about": "any method, debiased", "per image": {}, "options": options})
    return rows


def _models() -> Rows:
    """Names and measured sizes, and names without sizes that only the installed open_clip has."""
    measured = json.loads((Path(tta_panda.__file__).parent / "models" / "architectures.json").read_text("utf-8"))
    spec = importlib.util.find_spec("open_clip")  # importing it would take seconds
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    installed = sorted(path.stem for path in folder.glob("model_configs/*.json"))
    own = [name for name in ("mini", "lite0") if name in measured]
    known = [*own, *(name for name in measured if name in installed)]
    sizes = {name: measured.get(name, (None, None)) for name in [*known, *installed]}
    return [{"name": name, "parameters": size[0], "image_size": size[1]} for name, size in sizes.items()]


def _models_in_detail(pattern: str) -> Rows:
    from tta_panda.models.names import describe_models

    return describe_models(pattern)


def _data() -> Rows:
    from tta_panda.data import DATASETS

    return [{"name": name, "about": DATASETS.get(name).about} for name in DATASETS]


def _presets() -> Rows:
    from tta_panda.methods.presets import PRESETS

    return [
        {"name": preset.name, "model": preset.model, "data": preset.data, "templates": preset.templates}
        for preset in PRESETS.values()
    ]


def _presets_in_detail(_pattern: str) -> Rows:
    from tta_panda.methods.presets import PRESETS

    return [
        {"name": preset.name, "method": method, "options": options}
        for preset in PRESETS.values()
        for method, options in [*preset.methods.items(), ("+panda", preset.panda)]
    ]


def _experiments() -> Rows:
    from tta_panda.experiments import EXPERIMENTS

    return [
        {"name": name, "about": f"{each.title}. {each.about}", "in the paper": each.in_paper or None}
        for name, each in EXPERIMENTS.items()
    ]


def _experiments_in_detail(pattern: str) -> Rows:
    from tta_panda.experiments import EXPERIMENTS
    from tta_panda.experiments.setup import PAPER_SEEDS, QUICK_SEEDS, Setup

    full, quick = Setup(seeds=[0]), Setup(quick=True, seeds=[0])  # every run is made with every seed
    rows: Rows = []
    for row in _experiments():
        if fnmatch.fnmatchcase(row["name"], pattern):
            experiment = EXPERIMENTS[row["name"]]
            runs = len(experiment.runs(full)) * len(experiment.defaults.get("seeds", PAPER_SEEDS))
            quick_runs = len(experiment.runs(quick)) * len(QUICK_SEEDS)
            rows.append({**row, "runs": runs, "quick": quick_runs, "needs": experiment.needs(full)})
    return rows


def _corruptions() -> Rows:
    from tta_panda.data.corruptions import ALL_GROUPS

    return [{"name": name, "group": group} for group, names in ALL_GROUPS.items() for name in names]


_KINDS: dict[str, tuple[Callable[[], Rows], Callable[[str], Rows], str]] = {
    "methods": (_methods, _methods_in_detail, "Options, and images and texts encoded per image"),
    "models": (_models, _models_in_detail, "Published weights, and whether they are on this machine"),
    "data": (_data, lambda _pattern: _data(), ""),
    "presets": (_presets, _presets_in_detail, "Settings of a preset"),
    "experiments": (_experiments, _experiments_in_detail, "Runs and their requirements"),
    "corruptions": (_corruptions, lambda _pattern: _corruptions(), ""),
}
"""Functions that list a kind briefly and in detail, and what the details are."""
