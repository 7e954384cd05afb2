"""Self-contained HTML pages: nothing is loaded from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunRecord


def render(template: str, **content: Any) -> str:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("tta_panda.reporting"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return templates.get_template(template).render(**content)


def write_page(path: Path, page: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"Cannot write the report to {path} ({error.strerror or error}).") from error
    return path


def environments(records: Iterable[RunRecord]) -> str:
    """Every environment that records were made in, as text."""
    found = {json.dumps(record.environment, indent=1, sort_keys=True) for record in records}
    return "\n".join(sorted(found))
