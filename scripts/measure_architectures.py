"""Write the table of sizes that `tta-panda ls models` reads, for the installed version of open_clip."""

from __future__ import annotations

import json

import open_clip

from tta_panda.models.catalogue import SIZES, measure
from tta_panda.models.mini import register_architecture


def main() -> None:
    register_architecture()
    lines = [f" {json.dumps(name)}: {json.dumps(measure(name))}" for name in open_clip.list_models()]
    SIZES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} architectures in {SIZES}")


if __name__ == "__main__":
    main()
