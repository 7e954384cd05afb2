"""`tta-panda doctor`: installed versions, devices, cache folders, and how to install what is missing."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from tta_panda.cli.common import print_json
from tta_panda.cli.options import JsonOption
from tta_panda.progress import make_console

PURPOSES = {
    "app": "the page of tta-panda explore",
    "datasets": "--data hf:NAME",
    "lite": "the model lite0",
    "openvino": "--backend openvino",
    "parquet": "predictions in Parquet files",
    "pandas": "results as DataFrames",
    "ray": "--engine ray",
    "trackio": "--log trackio",
    "transformers": "models, text towers and tokenizers of the transformers library",
    "wandb": "--log wandb",
}
"""Purposes of the extras for users; the others (docs, lint, test) are for development."""


def doctor(as_json: JsonOption = False) -> None:
    """Print versions, devices, caches, and how to install what is missing.

    \b
    Examples:
      tta-panda doctor
      tta-panda doctor --json
    """
    report = {"versions": _versions(), "devices": _devices(), "folders": _folders(), "missing": _missing()}
    if as_json:
        print_json([], **report)
        return
    console = make_console()
    for title in ("versions", "devices", "folders"):
        console.print(title)
        for name, value in report[title].items():
            console.print(f"  {name:24} {value}")
    console.print("missing" if report["missing"] else "Nothing is missing.")
    for name, what in report["missing"].items():
        console.print(f"  {name:24} {what['needed_for']}: {what['command']}")


def _packages() -> dict[str, str]:
    """Dependencies by name, with the extra that installs each; "" for required ones."""
    packages: dict[str, str] = {}
    for requirement in metadata.requires("tta-panda") or []:
        name = re.split(r"[^\w.-]", requirement)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)", requirement)
        if extra is None or extra[1] in PURPOSES:
            packages.setdefault(name, extra[1] if extra else "")
    return packages


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in ("tta-panda", *_packages())}
    return {"python": platform.python_version()} | {name: version for name, version in found.items() if version}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, str]:
    """Available devices. Torch takes seconds to import, so it is only imported if it might find a GPU."""
    from tta_panda.executors import available_cores

    devices = {"cpu": f"{available_cores()} cores, {platform.machine()}", "cuda": _why_no_cuda(), "mps": "none"}
    if not devices["cuda"]:
        import torch

        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        devices["cuda"] = ", ".join(names) or "none (a driver, but no device)"
    if sys.platform == "darwin":
        import torch

        devices["mps"] = "yes" if torch.backends.mps.is_available() else "none"
    best = next((name for name in ("cuda", "mps") if not devices[name].startswith("none")), "cpu")
    return devices | {"--device auto": best}


def _why_no_cuda() -> str:
    """Why torch cannot use an NVIDIA or AMD GPU; empty if it might."""
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py").read_text("utf-8") if spec and spec.origin else ""
    built = dict(re.findall(r"^(cuda|hip)\b.*= '([^']*)'$", version, re.MULTILINE))
    if built.get("hip"):
        return ""
    if not built.get("cuda"):
        return "none (this torch is built without it)"
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return f"none (built for {built['cuda']}, but there is no driver)"
    return ""


def _folders() -> dict[str, str]:
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    return {"hub cache": f"{cache} ({_state(cache)})"}


def _state(folder: Path) -> str:
    if not folder.is_dir():
        return "does not exist yet"
    free = shutil.disk_usage(folder).free / 1e9
    return f"{free:.0f} GB free" if os.access(folder, os.W_OK) else "cannot be written"


def _missing() -> dict[str, Any]:
    return {
        name: {"needed_for": PURPOSES[extra], "command": f'pip install "tta-panda[{extra}]"'}
        for name, extra in _packages().items()
        if extra and _version(name) is None
    }
