"""Optional packages: asked for only where something needs them."""

from __future__ import annotations

import importlib.util

from tta_panda.errors import MissingExtraError

TRANSFORMERS = "transformers"


def require_transformers(what: str) -> None:
    """Raise `MissingExtraError` where the transformers library is not installed."""
    if importlib.util.find_spec(TRANSFORMERS) is None:
        raise MissingExtraError(
            f"{what} need a package that is not installed. Type: pip install 'tta-panda[{TRANSFORMERS}]'"
        )
