"""Topics, groups, transactions and the node, from an event loop.

Requests are rare and short: a thread of the loop's makes them, by the blocking `penstock.Admin`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from penstock.client.admin.admin import (
    AccessEntry,
    ClientInfo,
    ClusterDescription,
    DrainStatus,
    ExportedOffsets,
    GroupDescription,
    GroupListing,
    LimitSetting,
    LimitUse,
    OffsetReset,
    PartitionPlace,
    QuotaSetting,
    SettingInfo,
    ShareGroupDescription,
    TopicConfig,
    TopicDescription,
    TransactionDescription,
    TrimResult,
)
from penstock.client.admin.admin import Admin as BlockingAdmin
from penstock.client.admin.hot_keys import SAMPLE, SHOWN, HotPartition
from penstock.client.admin.node import SettingValue
from penstock.client.admin.peek import PEEK_LIMIT, JobState, PeekedJob
from penstock.client.admin.scaling import GroupScale
from penstock.client.aio.waits import in_thread
from penstock.client.closing import AsyncClosing
from penstock.client.consumer.offsets import Offset
from penstock.client.remote.address import Place
from penstock.ipc.messages import NodeDescription

T = TypeVar("T")


class Admin(AsyncClosing):
    """See `penstock.Admin`, whose verbs these are. A call that is cancelled may be done all the
    same."""

    def __init__(self, core: BlockingAdmin) -> None:
        self._core = core
        self._lock = threading.Lock()  # one request at a time, also after a cancelled one

    @classmethod
    async def make(cls, socket: Place, *, client_id: str, timeout: float) -> Admin:
        make = partial(BlockingAdmin, socket, client_id=client_id, timeout=timeout)
        return cls(await in_thread(make, discard=BlockingAdmin.close))

    async def create_topic(
        self,
        name: str,
        config: TopicConfig | int | None = None,
        *,
        if_not_exists: bool = False,
        **settings: Any,
    ) -> bool:
        """Makes a topic and opens its partitions; True: it is new. See `penstock.Admin`."""
        return await self._do(
            partial(self._core.create_topic, name, config, if_not_exists=if_not_exists, **settings)
        )

    async def alter_topic(self, name: str, **changes: Any) -> None:
        """Changes settings of a topic while it is in use."""
        await self._do(partial(self._core.alter_topic, name, **changes))

    async def add_partitions(self, name: str, total: int) -> None:
        """Grows a topic to `total` partitions."""
        await self._do(partial(self._core.add_partitions, name, total))

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records. Raises `UnknownTopicError`."""
        await self._do(partial(self._core.delete_topic, name))

    async def trim(
        self,
        name: str,
        partition: int | Sequence[int] | None = None,
        *,
        before: Offset | str | int | datetime,
        dry_run: bool = False,
    ) -> list[TrimResult]:
        """Lets partitions (None: all) start at `before`. See `penstock.Admin.trim`."""
        return await self._do(
            partial(self._core.trim, name, partition, before=before, dry_run=dry_run)
        )

    async def list_topics(self) -> list[str]:
        """All topic names, sorted."""
        return await self._do(self._core.list_topics)

    async def describe_topic(self, name: str) -> TopicDescription:
        """A topic with the state of its partitions."""
        return await self._do(partial(self._core.describe_topic, name))

    # --- the cluster ---
    async def describe_cluster(self) -> ClusterDescription:
        """The cluster's brokers, its quorum, and which partitions are not well."""
        return await self._do(self._core.describe_cluster)

    async def describe_partitions(self, name: str) -> list[PartitionPlace]:
        """Returns the leader and the replicas of each partition of a topic."""
        return await self._do(partial(self._core.describe_partitions, name))

    async def elect_leaders(
        self, topic: str | None = None, partition: int | None = None, *, unclean: bool = False
    ) -> int:
        """Makes the first replica of each partition lead. See `penstock.Admin.elect_leaders`."""
        return await self._do(partial(self._core.elect_leaders, topic, partition, unclean=unclean))

    async def reassign_partition(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Moves a partition to these brokers. See `penstock.Admin.reassign_partition`."""
        await self._do(
            partial(
                self._core.reassign_partition, topic, partition, replicas,
                replication_factor=replication_factor,
            )
        )  # fmt: skip

    async def reassign_topic(
        self,
        topic: str,
        replicas: Sequence[int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Moves all partitions of a topic. See `penstock.Admin.reassign_topic`."""
        await self._do(
            partial(
                self._core.reassign_topic, topic, replicas, replication_factor=replication_factor
            )
        )

    async def remove_broker(self, broker: int) -> None:
        """Takes a broker that is stopped for good out. See `penstock.Admin.remove_broker`."""
        await self._do(partial(self._core.remove_broker, broker))

    async def drain_broker(self, broker: int, *, undo: bool = False) -> DrainStatus:
        """Makes other brokers lead what this one leads. See `penstock.Admin.drain_broker`."""
        return await self._do(partial(self._core.drain_broker, broker, undo=undo))

    async def describe_drain(self, broker: int) -> DrainStatus:
        """How much a broker still leads."""
        return await self._do(partial(self._core.describe_drain, broker))

    # --- groups ---
    async def list_groups(self) -> list[GroupListing]:
        """All groups that have members or committed offsets, sorted by name."""
        return await self._do(self._core.list_groups)

    async def describe_group(self, group: str, *, sample: float = 0.0) -> GroupDescription:
        """A group with its members, offsets and lag. With `sample`, so many seconds are waited for
        in the thread, and other requests of this admin wait for them."""
        return await self._do(partial(self._core.describe_group, group, sample=sample))

    async def describe_share_group(
        self, group: str, *, sample: float = 0.0
    ) -> ShareGroupDescription:
        return await self._do(partial(self._core.describe_share_group, group, sample=sample))

    async def hot_keys(
        self,
        topic: str,
        *,
        partitions: int | Sequence[int] | None = None,
        keys: int = SHOWN,
        sample: int = SAMPLE,
    ) -> list[HotPartition]:
        """The most frequent keys of each partition. See `penstock.Admin.hot_keys`."""
        return await self._do(
            partial(self._core.hot_keys, topic, partitions=partitions, keys=keys, sample=sample)
        )

    async def scale_group(
        self, group: str, *, lag_seconds: float = 60.0, within: float = 600.0, sample: float = 5.0
    ) -> GroupScale:
        """How many members a lag target needs. See `penstock.Admin.scale_group`."""
        options = {"lag_seconds": lag_seconds, "within": within, "sample": sample}
        return await self._do(partial(self._core.scale_group, group, **options))

    async def peek_share_group(
        self,
        group: str,
        topic: str,
        *,
        state: JobState | None = None,
        partitions: int | Sequence[int] | None = None,
        limit: int = PEEK_LIMIT,
        values: bool = True,
    ) -> list[PeekedJob]:
        """Looks at jobs without leasing them. See `penstock.Admin.peek_share_group`."""
        return await self._do(
            partial(
                self._core.peek_share_group, group, topic, state=state, partitions=partitions,
                limit=limit, values=values,
            )
        )  # fmt: skip

    async def pause_share_group(self, group: str, *, reason: str = "") -> None:
        await self._do(partial(self._core.pause_share_group, group, reason=reason))

    async def resume_share_group(self, group: str) -> None:
        await self._do(partial(self._core.resume_share_group, group))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        to: Offset | str | int | datetime,
        partitions: int | Sequence[int] | None = None,
        dry_run: bool = False,
        allow_redelivery: bool = False,
    ) -> list[OffsetReset]:
        """Lets a group go on elsewhere. See `penstock.Admin.reset_offsets`."""
        return await self._do(
            partial(
                self._core.reset_offsets, group, topic, to=to, partitions=partitions,
                dry_run=dry_run, allow_redelivery=allow_redelivery,
            )
        )  # fmt: skip

    async def report_offsets(
        self, group: str, topic: str, offsets: Mapping[int, tuple[int, int]]
    ) -> None:
        """Lets a group without members say how far it is. See `penstock.Admin.report_offsets`."""
        await self._do(partial(self._core.report_offsets, group, topic, offsets))

    async def export_offsets(self, group: str) -> ExportedOffsets:
        """Returns the offsets that a group has committed."""
        return await self._do(partial(self._core.export_offsets, group))

    async def import_offsets(
        self,
        group: str,
        offsets: ExportedOffsets,
        *,
        dry_run: bool = False,
        by_name: bool = False,
        clamp: bool = False,
        allow_redelivery: bool = False,
    ) -> list[OffsetReset]:
        """Sets what a group without members has committed. See `penstock.Admin.import_offsets`."""
        return await self._do(
            partial(
                self._core.import_offsets, group, offsets, dry_run=dry_run, by_name=by_name,
                clamp=clamp, allow_redelivery=allow_redelivery,
            )
        )  # fmt: skip

    async def delete_group(self, group: str, *, topic: str | None = None) -> None:
        """Forgets what a group has committed (of `topic`: only there)."""
        await self._do(partial(self._core.delete_group, group, topic=topic))

    # --- transactions and the node ---
    async def list_transactions(self) -> list[TransactionDescription]:
        """All transactional ids, sorted: what is open, and for how long."""
        return await self._do(self._core.list_transactions)

    async def list_access(self) -> list[AccessEntry]:
        """All access entries."""
        return await self._do(self._core.list_access)

    async def add_access(self, *entries: AccessEntry) -> int:
        """Adds entries; how many were not there yet."""
        return await self._do(partial(self._core.add_access, *entries))

    async def remove_access(self, *entries: AccessEntry) -> int:
        """Removes exactly these entries; how many were there."""
        return await self._do(partial(self._core.remove_access, *entries))

    async def list_quotas(self) -> list[QuotaSetting]:
        """All quotas of principals and client ids."""
        return await self._do(self._core.list_quotas)

    async def set_quota(self, quota: QuotaSetting) -> None:
        """Puts a quota in the place of the one for the same principal and client id."""
        await self._do(partial(self._core.set_quota, quota))

    async def list_limits(self) -> list[LimitSetting]:
        """The limits of namespaces."""
        return await self._do(self._core.list_limits)

    async def list_uses(self) -> list[LimitUse]:
        """How much namespaces have, and may have; see `Admin.list_uses`."""
        return await self._do(self._core.list_uses)

    async def set_limits(self, limits: LimitSetting) -> None:
        """Puts limits in the place of those of the same namespace."""
        await self._do(partial(self._core.set_limits, limits))

    async def list_clients(self, broker: int | None = None) -> list[ClientInfo]:
        """Returns the attached clients, each with its start. See `penstock.Admin.list_clients`."""
        return await self._do(partial(self._core.list_clients, broker))

    async def kick_client(self, client: str) -> None:
        """Ends a client's connection. See `penstock.Admin.kick_client`."""
        await self._do(partial(self._core.kick_client, client))

    async def list_settings(self, broker: int | None = None) -> list[SettingInfo]:
        """All settings of the node. See `penstock.Admin.list_settings`."""
        return await self._do(partial(self._core.list_settings, broker))

    async def alter_settings(
        self, changes: Mapping[str, SettingValue], *, broker: int | None = None
    ) -> list[SettingInfo]:
        """Changes settings of the node while it runs. See `penstock.Admin.alter_settings`."""
        return await self._do(partial(self._core.alter_settings, changes, broker=broker))

    async def describe_node(self) -> NodeDescription:
        """The node's process, its writers and how much is attached to it."""
        return await self._do(self._core.describe_node)

    async def _do(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._lock:
                return work()

        return await in_thread(alone)

    def _described(self) -> str:
        return self._core._described()

    async def close(self) -> None:
        await self._do(self._core.close)
