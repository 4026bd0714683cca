"""The messages between a node and its replicator on the replicator's lifeline.

    node                                              replicator
                                                  <-    Listens(url)
      LivingBrokers(cluster id, broker, epoch, brokers) ->    at each change
      Assign(page, ..., word)                     ->    at each change of the word
      Opened(page)                                ->    each time a writer has opened the partition
      Forget(page)                                ->    no replica of it is here any more
                                                  <-    ChangeIsr(page, change), again if need be
      IsrAnswer(page, change, answer)             ->
                                                  <-    Leaderless(page, end), once it is told so
                                                  <-    Lives(counts), twice a second
                                                  <-    Failed(error, message), and it leaves

They come in order. The `Assign` of a partition precedes all other messages about it, and `Opened`
comes after the `Assign` of the page where both are news. A new replicator gets everything again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.cluster.replica.messages import IsrChange, IsrChanged, LogEnd, PartitionAssignment

BROKERS_MAX: Final = 1024
"""Brokers that one `LivingBrokers` names."""
LAGS_MAX: Final = 64
"""Pages of which `Lives` tells how far their followers are behind: those furthest behind."""


# --- node -> replicator -------------------------------------------------------------------------
class LivingBrokers(msgspec.Struct, frozen=True, tag="cluster"):
    """The living brokers, this one too: the epoch and the replication URL of each (empty where it
    has not told one yet). `broker_epoch` is this broker's own."""

    cluster_id: bytes
    broker: int
    broker_epoch: int
    brokers: dict[int, tuple[int, str]]


class Assign(msgspec.Struct, frozen=True, tag="assign"):
    """The controller's assignment of a partition with a replica on this broker. `folder` is the
    log's, as its writer has it. `synced`: records count only where they are synced
    (`durability="fsync"`)."""

    page: int
    topic_id: bytes
    partition: int
    name: str
    folder: str
    synced: bool
    word: PartitionAssignment


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """A writer has opened the partition, and knows of no role yet."""

    page: int


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """The partition is no business of this broker any more. Frames of it that are in a lane are
    answered by its writer, as for any page that it does not have."""

    page: int


class IsrAnswer(msgspec.Struct, frozen=True, tag="isr_answer"):
    """The controller's answer to a `ChangeIsr`. Without an answer there is no such message: the
    replicator asks again."""

    page: int
    change: IsrChange
    answer: IsrChanged


Order = LivingBrokers | Assign | Opened | Forget | IsrAnswer


# --- replicator -> node -------------------------------------------------------------------------
class Listens(msgspec.Struct, frozen=True, tag="listens"):
    """Other brokers' replicators are served at this URL, with its real port."""

    url: str


class ChangeIsr(msgspec.Struct, frozen=True, tag="change_isr"):
    """The leader of a partition asks the controller for another ISR."""

    page: int
    topic_id: bytes
    partition: int
    change: IsrChange


class Leaderless(msgspec.Struct, frozen=True, tag="leaderless"):
    """The log end of a partition that nobody leads, after its writer has taken all frames on their
    way to it."""

    page: int
    topic_id: bytes
    partition: int
    end: LogEnd


class Lives(msgspec.Struct, frozen=True, tag="lives"):
    """A sign of life, twice a second. `counts` since its start; `lags`: (page, follower, offsets
    that it is behind), of pages led here."""

    counts: dict[str, int] = {}
    lags: list[tuple[int, int, int]] = []


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot go on, and leaves after this. `error` is a class of `penstock.core.errors`."""

    error: str
    message: str


Report = Listens | ChangeIsr | Leaderless | Lives | Failed
