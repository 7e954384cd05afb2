"""Links as the repository has them, which lead to other places on the site.

The start page is the README, one folder further up, and the notebook is among the examples.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

PLACES = {
    r"\]\(docs/": "](/",
    r"\]\((?:\.\./)?SECURITY\.md\)": "](/security.md)",
    r"\]\((?:\.\./)?CONTRIBUTING\.md\)": "](/contributing.md)",
    r"\[(\w+)\]\((?:\.\./)?examples/(quickstart)\.ipynb\)": r"{doc}`\1 </\2>`",
}


def _relink(content: list[str]) -> None:
    for place, on_site in PLACES.items():
        content[0] = re.sub(place, on_site, content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", lambda app, page, content: _relink(content))
    app.connect("include-read", lambda app, path, page, content: _relink(content))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
