"""Copies of what a node shares with its local clients, in memory of this process alone.

The state table is one for all of a client's attachments: what one of them hears of a partition is
true for all. Client slots are one each. Both have the layout of the node's, so that a reader sees
no difference. Written by the carrier's thread only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from penstock.client.remote.leaders import Brokers
from penstock.cluster.frames.messages import PageState
from penstock.ipc import clients as client_table
from penstock.ipc import layout as lo
from penstock.ipc import state as state_table
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.liveness import descriptor_limit_error
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage


def memory(what: str, size: int) -> tuple[int, Region]:
    """Allocates `size` bytes without a name, which go with the last process that maps them. Returns
    the descriptor, which is the caller's, and the memory."""
    try:
        fd = os.memfd_create(f"penstock-{what}", os.MFD_CLOEXEC)
    except OSError as error:
        raise descriptor_limit_error(f"making a {what}") from error
    try:
        os.ftruncate(fd, size)
        return fd, _mapped(fd)
    except BaseException:
        os.close(fd)
        raise


def _mapped(fd: int) -> Region:
    try:
        return Region.of_fd(os.dup(fd))
    except OSError as error:
        raise descriptor_limit_error("mapping memory of its own") from error


class MirroredPages:
    """The state table of a node, as far as it was heard of, or of a cluster, whose pages are the
    same everywhere. `node_uuid`: of the node, or what names the cluster."""

    def __init__(self, node_uuid: bytes) -> None:
        self.node_uuid = node_uuid
        self.fd, self._region = memory("state table", lo.state_table_bytes())
        state_table.format_table(self._region, node_uuid)
        self._pages: dict[int, StatePage] = {}

    def knows(self, index: int) -> bool:
        """Returns whether the state of that page was ever heard."""
        page = self._pages.get(index)
        return page is not None and page.identity is not None

    def of_leaders(
        self, states: Iterable[PageState], broker: int, brokers: Brokers
    ) -> list[PageState]:
        """Returns the states of a cluster's broker that count: of partitions that it leads, and
        those with a later leader epoch than was heard of. The state of a follower does not count:
        others know it better."""
        found = []
        for state in states:
            if state.status == lo.STATUS_FOLLOWING:
                continue
            if brokers.leader(state.page) != broker:
                page = self._pages.get(state.page)
                if not state.topic_id or (
                    page is not None and state.leader_epoch <= page.leader_epoch
                ):
                    continue
            found.append(state)
        return found

    def publish(self, states: Iterable[PageState]) -> None:
        """Publishes these states. In one leader epoch of a partition no value moves backwards, in
        whatever order they are heard."""
        for state in states:
            page = self._pages.get(state.page)
            if page is None:
                page = self._pages[state.page] = StatePage(self._region, state.page)
            self._publish(page, state)

    @staticmethod
    def _publish(page: StatePage, state: PageState) -> None:
        identity = page.identity
        if not state.topic_id:  # its writer has not opened it yet
            if identity is None:
                page.publish_status(state.status, state.errno)
            return
        known = identity == (state.topic_id, state.partition)
        if known and state.leader_epoch < page.leader_epoch:
            return
        page.claim(state.topic_id, state.partition, state.generation)
        if known and state.leader_epoch == page.leader_epoch:
            page.publish_ends(
                max(state.log_end, page.log_end),
                max(state.high_watermark, page.high_watermark),
                max(state.last_stable, page.last_stable),
            )
            page.publish_durable(max(state.durable, page.durable))
            page.publish_log_start(max(state.log_start, page.log_start))
        else:
            # The epoch goes first, and readers look at it last. So nothing of this log may be taken
            # for what the one before had on the device (rule 15).
            page.publish_epoch(state.leader_epoch)
            page.publish_log_start(state.log_start)
            page.publish_ends(state.log_end, state.high_watermark, state.last_stable)
            page.publish_durable(state.durable)
        if (state.status, state.errno) != (page.status, page.errno):
            page.publish_status(state.status, state.errno)
        if state.counters:
            page.copy_counts(state.counters, state.cleaning)

    def close(self) -> None:
        os.close(self.fd)
        self._pages.clear()
        self._region.close()


class MirroredSlot:
    """The client slot of one attachment, with the doorbell that wakes it."""

    def __init__(self, pid: int, start_time: int, kind: int) -> None:
        self.fd, self._region = memory("client table", lo.client_table_bytes(1))
        try:
            self.bell = Doorbell()
        except BaseException:
            os.close(self.fd)
            raise
        client_table.format_table(self._region, 1)
        self.slot = ClientSlot(self._region, 0)
        self.slot.assign(pid, start_time, kind)
        self._rung = 0

    def ring_if_asleep(self) -> None:
        """Rings it, if it sleeps, once a sleep. The caller has a fence behind what it published."""
        ticket = self.slot.ticket
        if ticket and ticket != self._rung:
            self._rung = ticket
            self.bell.ring()

    def give_notice(self, notice: int) -> None:
        """Sets the notice word."""
        self.slot.copy_notice(notice)
        self.bell.ring()

    def close(self) -> None:
        os.close(self.fd)
        self.bell.close()
        self._region.close()
