"""A page to look through the predictions of many pictures: thumbnails, what changed, how sure."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tta_panda.files import saving
from tta_panda.reporting.page import templates

THUMBNAIL = 96
"""Side in pixels."""
_QUALITY = 70


def write_contact_sheet(
    path: Path, method: str, model: str, rows: Iterable[Mapping[str, Any]], thumbnails: Iterable[Image.Image | None]
) -> Path:
    """A self-contained page. Rows and thumbnails are taken one by one, so any number of them needs little memory.

    Args:
        path: the page.
        method: what predicted.
        model: what it adapted.
        rows: predictions as `tta_panda.prediction.files` reads them.
        thumbnails: small pictures in the order of the rows; None where there is none.
    """
    entries = (_entry(row, thumbnail) for row, thumbnail in zip(rows, thumbnails, strict=True))
    page = templates().get_template("contact_sheet.html.j2").stream(method=method, model=model, entries=entries)
    page.enable_buffering(64)
    with saving(path) as part:
        page.dump(str(part), encoding="utf-8", errors="backslashreplace")
    return path


def _entry(row: Mapping[str, Any], thumbnail: Image.Image | None) -> list[Any]:
    """What the page's script knows of a picture, in a fixed order: names of fields would take half of the page."""
    names = ("path", "label", "predicted", "probability", "plain_predicted", "plain_probability", "status", "top")
    return [_encoded(thumbnail), *(row[name] for name in names)]


def _encoded(thumbnail: Image.Image | None) -> str:
    if thumbnail is None:
        return ""
    content = io.BytesIO()
    thumbnail.save(content, "JPEG", quality=_QUALITY)
    return base64.b64encode(content.getvalue()).decode()
