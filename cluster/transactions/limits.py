"""The limits of a coordinator's transactions, in number and time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """The limits. Each bound names itself in the error of a request that exceeds it."""

    transactions_max: int = 10_000
    """Transactional ids that are remembered at once, those of stages included. Each costs a record
    in the coordinator's log."""

    transaction_partitions_max: int = 1_000
    """Partitions of one transaction, or of one stage."""

    endings_max: int = 8
    """Decided transactions of one id that still wait for markers. A producer that decides faster
    than its partitions take markers is held back here."""

    stages_max: int = 2_000
    """Stages of one transaction id that nobody has decided yet, or that miss markers. One commit
    names so many at most, and is one batch of the coordinator's log."""

    name_bytes_max: int = 200
    """Length of a transactional id or the name of a stage, in UTF-8."""

    timeout_max: float = 900.0
    """Seconds that a producer may ask for between the first partition of a transaction and its
    end."""

    stage_timeout: float = 900.0
    """Seconds after its beginning after which a stage that nobody decided is aborted: so long it
    can hold readers of committed records back. As long the last decision of an id is kept for who
    asks again."""

    idle_max: float = 7 * 86_400.0
    """Seconds without use after which a transactional id is forgotten. Decisions of stages are
    never forgotten by themselves."""

    ranges_max: int = 64
    """Runs of consecutive committed epochs that are remembered of a transaction id with stages, to
    answer repeated commits."""

    tick_max: int = 100
    """Timeouts that one decision carries out; the others follow at once in the next."""

    tick_bytes_max: int = 8 << 10
    """Bytes of records after which such a decision ends. A decision is one batch, and one that
    exceeds the coordinator's lane would be tried for ever."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigError(f"{field.name}={getattr(self, field.name)}: must be positive")
