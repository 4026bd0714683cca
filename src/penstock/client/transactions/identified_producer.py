"""What transactional producers and stages have in common: records under an identity of their own.

Owns how a producer's batches come to be those of a transaction. Never begins or ends one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Unpack

from penstock.client.backoff import Retries
from penstock.client.producer.callbacks import Failures
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.delivery import Box
from penstock.client.producer.producer import Producer
from penstock.client.producer.routes import TopicRoutes
from penstock.client.remote.address import Place
from penstock.client.session import Session
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.registrar import Registrar
from penstock.client.transactions.sender import TransactionalOutbox
from penstock.client.validation import check_choice
from penstock.core import errors as er
from penstock.core.header import ATTR_TRANSACTIONAL

if TYPE_CHECKING:
    from penstock.client.options import ProducerOptions

TransactionDurability = Literal["fsynced", "appended"]
BY_FORK: Final = (
    "this transactional producer was made before fork(); its transaction belongs to the parent "
    "process. Make a new one in the child, with another transactional id"
)


class Identity(NamedTuple):
    """Under which producer id and epoch batches are in the log."""

    producer_id: int
    epoch: int


class Transacting(Producer):
    """A producer whose records are part of a transaction. `link` is closed with it."""

    _outbox: TransactionalOutbox

    def __init__(
        self,
        socket: Place,
        link: CoordinatorLink,
        transactional_id: str,
        identity: Identity,
        kept: TransactionDurability,
        **options: Unpack[ProducerOptions],
    ) -> None:
        if kept == "fsynced":
            options["durability"] = "fsynced"
        self.transactional_id = transactional_id
        self._link = link
        self._kept = kept
        self._identity = identity
        self._is_forked = False
        super().__init__(socket, **options)

    def _reset(self) -> None:
        super()._reset()
        self._registrar = Registrar(
            self, self._link, self.books, self._outbox, patience=self._delivery_timeout
        )

    def _new_outbox(self) -> TransactionalOutbox:
        config = self.config
        return TransactionalOutbox(
            self.socket,
            level=config.level(remote=True),  # "ring" is none for a transaction
            committed=True,
            idempotent=True,
            delivery_timeout=config.delivery_timeout,
            open_lane=lambda writer: self._minder.open_lane(writer),
            finished=self._finished,
            retries=Retries(config.retry_backoff, config.retry_backoff_max),
            want=lambda: self._registrar.want(),
        )

    def adopt(self, session: Session) -> None:
        super().adopt(session)
        self._settings = replace(
            self._settings,
            producer_id=self._identity.producer_id,
            attributes=ATTR_TRANSACTIONAL,
        )

    @property
    def producer_id(self) -> int:
        """The transactional producer id, under which its batches are in the log."""
        return self._identity.producer_id

    def _described(self) -> str:
        return f"{self.transactional_id!r}, {super()._described()}"

    def metrics(self) -> dict[str, int]:
        """As of every producer, and `requests_repeated`: to the coordinator, without an answer."""
        return {**super().metrics(), "requests_repeated": self._link.repeated}

    def awake(self) -> None:
        """Partitions were registered, or refused (lock held): whoever waits looks again."""
        self._minder.posted()
        self._minder.nudge()

    # --- what is not part of the transaction -----------------------------------------------------
    def check_may_send(self) -> None:
        """Raises unless records are welcome now."""
        if self._outbox.failure is not None:
            cause = self._outbox.failure
            known = cause if isinstance(cause, er.TransactionError) else None
            raise known or er.TransactionError(
                f"the transaction of {self.transactional_id!r} can only be aborted: {cause}"
            ) from cause

    def _known(self, topic: str) -> TopicRoutes | None:
        self._check_usable()
        self.check_may_send()
        return super()._known(topic)

    def _fail(self, box: Box, error: Exception) -> None:
        self._outbox.fail(error)
        super()._fail(box, error)

    def _check_usable(self) -> None:
        if self._is_forked:
            raise er.ForkedClientError(BY_FORK)
        super()._check_usable()

    def _drop_open(self, error: Exception) -> None:
        """Fail all that is not acknowledged, also in open boxes (lock held)."""
        for box in list(self.boxes.open.values()):
            if self.boxes.close(box) is not None:
                self._counts["failed"] += box.count
                self._fail(box, error)
                self.boxes.closed(box)
        self._outbox.end(error)
        self._failed = Failures()  # who wants to know has the error of the transaction itself
        self.awake()

    def _let_go(self) -> None:
        self._link.close()
        self._registrar.stop()
        super()._let_go()

    def after_fork_in_child(self) -> None:
        self._is_forked = True
        self._link.after_fork_in_child()
        super().after_fork_in_child()


def checked(durability: object, options: ProducerOptions) -> ProducerConfig:
    """The options of a producer whose records are part of a transaction. Raises `ConfigError`."""
    check_choice("transaction_durability", durability, ("fsynced", "appended"))
    config = ProducerConfig(**options)
    for name, wanted, why in (
        ("acks", config.acks != 0, "a commit waits for every record"),
        ("idempotent", config.idempotent, "a transaction has each record once"),
        ("durability", config.durability is None, "use transaction_durability"),
        ("on_full", config.on_full in ("block", "error"), "a transaction has all records or none"),
    ):
        if not wanted:
            value: Any = getattr(config, name)
            raise er.ConfigError(f"{name}={value!r} does not go with transactions: {why}")
    return config
