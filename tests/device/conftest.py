"""Tests on a device that is not the CPU, in a process of their own (see fake_device.py): `pytest tests/device`."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _fake_device() -> None:
    import fake_device

    if reason := fake_device.missing():
        pytest.skip(reason)
    fake_device.load()
