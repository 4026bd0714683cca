"""A second principal that may write to a topic, and tries to do so as somebody else's producer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from wire import WITHIN, Dealer, batch_of

import penstock
from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.core.header import ATTR_TRANSACTIONAL
from penstock.ipc import coordination as co
from penstock.ipc import messages as ms


class Intruder:
    """A producer of its own at one broker, which sends batches that say what it likes."""

    proof: fr.Proof

    def __init__(self, dealer: Dealer, topic: str) -> None:
        self.dealer = dealer
        self.attached = dealer.producer()
        self.topic = dealer.find(1, topic)
        self._sent: Counter[int] = Counter()

    def writes(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        *,
        partition: int = 0,
        attributes: int = ATTR_TRANSACTIONAL,
        **produce: Any,
    ) -> ErrorCode:
        """How its broker answers such a batch; `produce`: more fields of the message."""
        batch = batch_of(
            [b"foreign"], self.topic, producer_id, sequence,
            partition=partition, producer_epoch=epoch, attributes=attributes,
        )  # fmt: skip
        return self.sends(batch, partition=partition, **produce)

    def sends(self, batch: bytes, *, partition: int = 0, **produce: Any) -> ErrorCode:
        page = self.topic.pages[partition]
        writer = page % self.attached.writers
        message = fr.Produce(1, writer, self._sent[writer], page, **produce)
        self._sent[writer] += 1
        self.dealer.say(message, batch)
        [ack] = self.dealer.acks(1)
        return ErrorCode(ack.error)

    def registers(self, name: str, producer_id: int, epoch: int, *partitions: int) -> str:
        """What refuses it to register these with that transaction; empty: nothing. `proof` is what
        it got for it then."""
        places = [(self.topic.topic_id, partition) for partition in partitions]
        answer = self.dealer.ask(1, co.AddPartitions(name, producer_id, epoch, places), WITHIN)
        self.proof = self.dealer.answer.proof
        return answer.error if isinstance(answer, ms.Refused) else ""


def committed(client: penstock.Client, topic: str) -> list[bytes | None]:
    """What readers of committed records find."""
    with client.consumer(topic, isolation="read_committed", follow=False) as reader:
        return [record.value for record in reader]
