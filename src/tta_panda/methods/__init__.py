"""Test-time adaptation methods, by name. A name may carry a modifier: `tent+panda` is Tent on debiased features."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tta_panda.errors import UnknownNameError
from tta_panda.registry import Registry

if TYPE_CHECKING:
    from tta_panda.methods.base import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    {
        "clip": "tta_panda.methods.clip:CLIP",
        "tent": "tta_panda.methods.tent:Tent",
        "eta": "tta_panda.methods.eta:ETA",
        "sar": "tta_panda.methods.sar:SAR",
        "deyo": "tta_panda.methods.deyo:DeYO",
        "tpt": "tta_panda.methods.tpt:TPT",
        "dmn": "tta_panda.methods.dmn:DMN",
        "zero": "tta_panda.methods.zero:Zero",
        "tps": "tta_panda.methods.tps:TPS",
        "bat": "tta_panda.methods.bat:BAT",
    },
)

PANDA_SUFFIX = "panda"


class MethodName(NamedTuple):
    """`tent+panda` taken apart."""

    base: str
    panda: bool

    def __str__(self) -> str:
        return f"{self.base}+{PANDA_SUFFIX}" if self.panda else self.base


def parse_method(name: str) -> MethodName:
    """Check a name such as `tent` or `tent+panda` against the registry, without importing the method."""
    base, plus, modifier = name.strip().lower().partition("+")
    known = [*METHODS, *(f"{method}+{PANDA_SUFFIX}" for method in METHODS)]
    if base not in METHODS or (plus and modifier != PANDA_SUFFIX):
        raise UnknownNameError("method", name, known)
    return MethodName(base, bool(plus))
