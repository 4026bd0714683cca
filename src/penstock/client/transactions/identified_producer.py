"""Common part of transactional producers and stages: records under an identity of their own.

Owns how a producer's batches come to be those of a transaction: its gate, its identity, when its
records are welcome. Never begins or ends one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.callbacks import Outcomes
from penstock.client.producer.config import ProducerConfig
from penstock.client.producer.io_thread import Minder
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState, Terms
from penstock.client.remote.address import Place
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.client.transactions.gate import TransactionGate
from penstock.client.transactions.registrar import Registrar
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


class TransactionPolicy:
    """Policy of a producer with an identity.

    `check` raises unless a transaction is open; a stage has one from the start. `link` is closed
    with the producer.
    """

    def __init__(
        self,
        socket: Place,
        transactional_id: str,
        identity: Identity,
        link: CoordinatorLink,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.identity = identity
        self.link = link
        self._check = check
        self._socket = socket

    def terms(self, config: ProducerConfig) -> Terms:
        return Terms(
            config.level(remote=True),  # "ring" is none for a transaction
            committed=True,
            idempotent=True,
            producer_id=self.identity.producer_id,
            attributes=ATTR_TRANSACTIONAL,
            name=self.transactional_id,
        )

    def new_gate(self) -> TransactionGate:
        self.gate = TransactionGate(self._socket, want=lambda: self._registrar.want())
        return self.gate

    def bind(
        self, state: ProducerState, outcomes: Outcomes, sender: Sender, boxes: Boxes, io: Minder
    ) -> None:
        self._outcomes, self._sender, self._boxes = outcomes, sender, boxes
        self._registrar = Registrar(state, self.transactional_id, self.link, self.gate, sender, io)

    def check_may_send(self) -> None:
        if self._check is not None:
            self._check()
        cause = self.gate.failure
        if cause is not None:
            known = cause if isinstance(cause, er.TransactionError) else None
            raise known or er.TransactionError(
                f"the transaction of {self.transactional_id!r} can only be aborted: {cause}"
            ) from cause

    def is_settled(self) -> bool:
        """Whether all that was sent is acknowledged, or a delivery has failed."""
        return not self._sender.buffered or self.gate.failure is not None

    def begin(self) -> None:
        """Opens a transaction of this identity's epoch (lock held, or nobody else there yet)."""
        assert not self._sender.buffered, self._sender.buffered
        self.gate.begin(self.identity.epoch, self._sender.routes())

    def drop_open(self, error: Exception) -> None:
        """Fail all that is not acknowledged, also in open boxes (lock held)."""
        self._boxes.drop(error)
        self.gate.end(error)
        self._sender.lose_all(error)
        self._outcomes.unseen()  # the error of the transaction tells it
        self._registrar.awake()

    def metrics(self) -> dict[str, int]:
        """`requests_repeated`: to the coordinator, without an answer."""
        return {"requests_repeated": self.link.repeated}

    def close(self) -> None:
        self.link.close()
        self._registrar.stop()

    def after_fork_in_child(self) -> str:
        self.link.after_fork_in_child()
        return BY_FORK


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


def lasting(config: ProducerConfig, durability: TransactionDurability) -> ProducerConfig:
    """The same for records that are to be on stable storage before a commit, where it says so."""
    return replace(config, durability="fsynced") if durability == "fsynced" else config
