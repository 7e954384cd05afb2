"""A page to look through the predictions of many pictures: thumbnails, what changed, how sure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tta_panda.files import saving
from tta_panda.reporting.page import templates

_FIELDS = (
    "thumbnail", "path", "label", "predicted", "probability", "plain_predicted", "plain_probability", "error", "top",
)  # fmt: skip


def write_contact_sheet(path: Path, rows: Iterable[Mapping[str, Any]], method: str, model: str) -> Path:
    """Write a self-contained page. Rows are taken one by one, so any number of them needs little memory.

    Args:
        path: the page.
        rows: predictions, each with its `thumbnail` as JPEG in base64, which is empty where there is none.
        method: what predicted.
        model: what it adapted.
    """
    # Lists, because names of fields would take half of the page.
    entries = ([row[name] for name in _FIELDS] for row in rows)
    page = templates().get_template("contact_sheet.html.j2").stream(method=method, model=model, entries=entries)
    page.enable_buffering(64)
    with saving(path) as part:
        page.dump(str(part), encoding="utf-8", errors="backslashreplace")
    return path
