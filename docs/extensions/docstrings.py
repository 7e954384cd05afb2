"""The API reference from docstrings as they are written here, with `code` in single backticks."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")


def _mark_code(app: Sphinx, what: str, name: str, it: object, options: object, lines: list[str]) -> None:
    text = CODE.sub(lambda found: f"``{found[1]}``" + (f"\\ {found[2]}" if found[2] else ""), "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _mark_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
