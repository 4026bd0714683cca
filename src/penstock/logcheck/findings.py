"""The findings of a check: errors, and notes that are only worth knowing. Bounded in number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FINDINGS_MAX: Final = 1000
"""A log that is garbage from somewhere on gives no more findings than this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be; with `is_note` something that is only worth knowing."""

    kind: str
    file: str
    position: int | None
    message: str
    is_note: bool = False


@dataclass(slots=True)
class Checked:
    """One partition folder and what was found in it."""

    folder: str
    name: str
    log_start: int = 0
    log_end: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    producers: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_note]

    def find(
        self, kind: str, file: str, position: int | None, message: str, *, note: bool = False
    ) -> None:
        """Adds a finding, unless there are too many already."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(kind, file, position, message, note))
