"""What came of runs: their records, and what has none."""

from __future__ import annotations

from dataclasses import dataclass, field

from tta_panda.evaluation.record import FailedRun, RunRecord


@dataclass
class Outcome:
    """What came of some runs: their records by key, and what has none, with the reason."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    existed: int = 0
    """Records that had been made before."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Methods that the model cannot serve."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Domains that cannot be read."""
    diverged: dict[str, FailedRun] = field(default_factory=dict)
    """Runs whose predictions became NaN or infinite, by key."""
    failed: dict[str, FailedRun] = field(default_factory=dict)
    """Runs that were tried several times in vain, by key."""

    def missing(self) -> list[dict[str, str]]:
        """What has no record, as rows: what it is, what became of it, and why."""
        found = {
            "unavailable": self.unavailable.items(),
            "unreadable": self.unreadable.items(),
            "diverged": [(str(each.config), each.message) for each in self.diverged.values()],
            "failed": [(str(each.config), each.message) for each in self.failed.values()],
        }
        return [
            {"what": what, "status": status, "reason": why} for status, items in found.items() for what, why in items
        ]

    def merge(self, other: Outcome) -> None:
        self.records |= other.records
        self.existed += other.existed
        self.unavailable |= other.unavailable
        self.unreadable |= other.unreadable
        self.diverged |= other.diverged
        self.failed |= other.failed
