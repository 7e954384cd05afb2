"""A folder of records as comparisons."""

from __future__ import annotations

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.results.comparison import Comparison, compare


def read_comparisons(store: RunStore) -> tuple[list[RunRecord], list[Comparison]]:
    """The records of a folder, and these and its runs that diverged as comparisons."""
    records = store.records()
    if not records:
        raise StoreError(f"There are no records in {store.root}. Make some with: tta-panda bench -o {store.root}")
    return records, compare(records, (each.config for each in store.divergences().values()))
