"""The options of a relay: what each means, its default, its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.client.transactions.identified_producer import TransactionDurability
from penstock.client.validation import check_choice, check_flag, check_integer, check_range
from penstock.core.errors import ConfigError
from penstock.database.dsn import dialect_of_dsn
from penstock.database.statements import check_table
from penstock.outbox.schema import TABLE

BATCH_ROWS: Final = 5000
BATCH_ROWS_MAX: Final = 50_000
POLL_INTERVALS: Final = {"postgresql": 1.0, "sqlite": 0.005}
PROGRESS_TOPIC: Final = "outbox.progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    """Durations are in seconds. Raises `ConfigError` naming option, value and what is allowed.

    Attributes:
        dsn: the database: postgresql://USER@HOST/DATABASE or sqlite:///PATH.
        table: the outbox in it.
        progress_topic: the compacted topic in which relays say what they have sent, made if it is
            not there. Several outboxes may share it.
        batch_rows: rows of one transaction, at most. More cost less each, and wait longer.
        poll_interval: seconds between two looks at an outbox that is empty. PostgreSQL tells of new
            rows at once (LISTEN), so 1 s is the default there; SQLite cannot, and 5 ms is.
        keep_sent: rows that are sent stay, with state 1, until `penstock outbox purge`. Without it
            they are deleted.
        durability: "fsynced": records are on stable storage before their rows go. "appended" is
            quicker; a power cut of the node may take records whose rows are gone.
        accept_gap: go on where database and topic do not fit, because one of them is an older copy.
            Rows may be sent twice then, or be missing.
    """

    dsn: str
    table: str = TABLE
    progress_topic: str = PROGRESS_TOPIC
    batch_rows: int = BATCH_ROWS
    poll_interval: float | None = None
    keep_sent: bool = False
    durability: TransactionDurability = "fsynced"
    accept_gap: bool = False

    def __post_init__(self) -> None:
        dialect = dialect_of_dsn(self.dsn)
        check_table(self.table)
        if not self.progress_topic:
            raise ConfigError("progress_topic='' must have a name")
        check_integer("batch_rows", self.batch_rows)
        check_range("batch_rows", self.batch_rows, 1, BATCH_ROWS_MAX)
        if self.poll_interval is None:
            object.__setattr__(self, "poll_interval", POLL_INTERVALS[dialect])
        check_range("poll_interval", self.pause, 0.001, 3600.0)
        check_flag("keep_sent", self.keep_sent)
        check_choice("durability", self.durability, ("fsynced", "appended"))
        check_flag("accept_gap", self.accept_gap)

    @property
    def pause(self) -> float:
        """Returns the interval between two looks at an empty outbox, in seconds."""
        assert self.poll_interval is not None
        return self.poll_interval
