"""Topics and their settings, groups, transactions, and what the node says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import msgspec

from penstock.client import fork_safety
from penstock.client.admin import hot_keys as hot
from penstock.client.admin import scaling
from penstock.client.admin.access import (
    AccessAdmin,
    AccessEntry,
    LimitSetting,
    LimitUse,
    QuotaSetting,
)
from penstock.client.admin.cluster import (
    ClusterAdmin,
    ClusterDescription,
    DrainStatus,
    PartitionPlace,
    UncleanRecovery,
)
from penstock.client.admin.exported_offsets import ExportedOffsets
from penstock.client.admin.groups import GroupAdmin, GroupDescription, GroupListing, OffsetReset
from penstock.client.admin.hot_keys import HotPartition
from penstock.client.admin.node import ClientInfo, NodeAdmin, SettingInfo, SettingValue
from penstock.client.admin.peek import PEEK_LIMIT, JobPeek, JobState, PeekedJob
from penstock.client.admin.scaling import GroupScale
from penstock.client.admin.share_groups import ShareGroupAdmin, ShareGroupDescription
from penstock.client.admin.topic_config import SETTABLE, TopicConfig, altered, config_of
from penstock.client.admin.topic_listing import TopicListing, TopicPage
from penstock.client.admin.trim import PartitionTrim, TrimResult, chosen
from penstock.client.closing import Closing
from penstock.client.consumer.offsets import Offset
from penstock.client.remote.address import Place
from penstock.client.remote.logs import logs_of
from penstock.client.session import Reply, Session, as_topic
from penstock.client.transactions.listing import TransactionDescription, listed
from penstock.core import errors as er
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc.coordination import Transactions
from penstock.ipc.liveness import boot_id
from penstock.ipc.state import StatePage
from penstock.ipc.waits import run

__all__ = [
    "AccessEntry",
    "Admin",
    "ClientInfo",
    "ClusterDescription",
    "DrainStatus",
    "ExportedOffsets",
    "GroupDescription",
    "GroupListing",
    "LimitSetting",
    "LimitUse",
    "OffsetReset",
    "PartitionDescription",
    "PartitionPlace",
    "QuotaSetting",
    "SettingInfo",
    "ShareGroupDescription",
    "TopicConfig",
    "TopicDescription",
    "TransactionDescription",
    "TrimResult",
    "UncleanRecovery",
]

ATTACH_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition as shared memory shows it. In a cluster: as that of its leader does; and who
    leads it (None: nobody now), which brokers have a replica, which replicas are in sync."""

    partition: int
    writer: int
    status: str
    log_start: int
    durable: int
    last_stable: int
    high_watermark: int
    log_end: int
    leader_epoch: int
    counters: dict[str, int]
    cleaning: dict[str, int]
    leader: int | None = None
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic, its settings and its partitions, and the room on the disk they lie on: `level` is
    "ok", "low" (below disk_warn) or "full" (below disk_stop: nothing is appended)."""

    name: str
    topic_id: str
    settings: dict[str, Any]
    partitions: list[PartitionDescription]
    disk: dict[str, Any]


class Admin(Closing):
    """Administers topics and groups of a node. Made by `Client.admin`. For one thread at a time."""

    def __init__(
        self,
        socket: Place,
        *,
        client_id: str = "",
        timeout: float = 15.0,
        attach_timeout: float | None = ATTACH_MAX,
    ) -> None:
        self._timeout = timeout
        self._socket = socket
        self._client_id = client_id
        self._session = self._attach(attach_timeout)
        self._closed = False
        self._forked = False
        fork_safety.remember(self)

    def _attach(self, timeout: float | None = ATTACH_MAX) -> Session:
        """`timeout`: as `connect` takes it."""
        bound = None if timeout is None else min(self._timeout, timeout)
        return Session.attach(self._socket, lo.KIND_ADMIN, client_id=self._client_id, timeout=bound)

    def create_topic(
        self,
        name: str,
        config: TopicConfig | int | None = None,
        *,
        if_not_exists: bool = False,
        **settings: Any,
    ) -> bool:
        """Makes a topic and opens its partitions; True: it is new.

        Made of a `TopicConfig`, or of its fields by name (`partitions=3`, of which a lone number is
        short for). `if_not_exists`: a topic that is there already stays as it is. Raises
        `TopicExistsError`, `ConfigError`.
        """
        made_of = config_of(config, settings).settings()
        try:
            self._ask(ms.CreateTopic(as_topic(name), made_of), ms.TopicFound)
        except er.TopicExistsError:
            if not if_not_exists:
                raise
            return False
        return True

    def alter_topic(self, name: str, **changes: Any) -> None:
        """Changes settings of a topic while it is in use (the fields of `TopicConfig`); nothing is
        restarted. Raises `ConfigError`, `UnknownTopicError`."""
        settings = altered(self._find(name).settings, changes)
        self._ask(ms.AlterTopic(name, settings), ms.TopicFound)

    def add_partitions(self, name: str, total: int) -> None:
        """Grows a topic to `total` partitions. Keys of old records stay where they are."""
        self.alter_topic(name, partitions=total)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its records. Raises `UnknownTopicError`."""
        self._ask(ms.DeleteTopic(as_topic(name)), ms.Done)

    def trim(
        self,
        name: str,
        partition: int | Sequence[int] | None = None,
        *,
        before: Offset | str | int | datetime,
        dry_run: bool = False,
    ) -> list[TrimResult]:
        """Deletes the records before `before` in these partitions (None: all).

        `before` is an offset, a time (the first batch at or after it stays), "latest" for all there
        is, or an `Offset`. A consumer below it gets `OffsetOutOfRangeError`, or follows
        its `on_out_of_range`. `dry_run` only tells what would go. Raises `OffsetOutOfRangeError`
        for an offset above the log's end, `UnknownTopicError`, `LogOfflineError`.
        """
        info, place, session = self._find(name), Offset.of(before), self._session
        logs = logs_of(session, self._timeout)
        trims = [
            PartitionTrim(info, number, session.page(info.pages[number]), logs, place)
            for number in chosen(info, partition)
        ]
        if dry_run:
            return [each.foretell() for each in trims]
        return [each.do(lambda order: self._ask(order, ms.Cleaned)) for each in trims]

    def list_topics(self) -> list[str]:
        """All topic names, sorted."""
        names: list[str] = []
        while True:
            answer = self._ask(ms.ListTopics(names[-1] if names else ""), ms.Topics)
            names += [topic.name for topic in answer.topics]
            if not answer.more:
                return names

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with the state of its partitions, read from shared memory."""
        info = self._find(name)
        logs = logs_of(self._session, self._timeout)
        run(logs.refreshing([self._session.page(page) for page in info.pages]))
        partitions = [
            self._describe(number, self._session.page(page), page % self._session.writers)
            for number, page in enumerate(info.pages)
        ]
        if self._session.welcome.remote:
            places = ClusterAdmin(self._ask).places(name)
            partitions = [_placed(*each) for each in zip(partitions, places, strict=False)]
        settings = {name: getattr(info.settings, name) for name in SETTABLE}
        room = run(logs.looking_at_disk())
        disk = {**room._asdict(), "level": lo.DISK_NAMES.get(room.level, str(room.level))}
        return TopicDescription(name, info.topic_id.hex(), settings, partitions, disk)

    @staticmethod
    def _describe(number: int, page: StatePage, writer: int) -> PartitionDescription:
        return PartitionDescription(
            number,
            writer,
            lo.STATUS_NAMES.get(page.status, str(page.status)),
            page.log_start,
            page.durable,
            page.last_stable,
            page.high_watermark,
            page.log_end,
            page.leader_epoch,
            page.counters(),
            page.cleaning(),
        )

    # --- the cluster ---
    def describe_cluster(self) -> ClusterDescription:
        """The cluster's brokers, its quorum, and which partitions are not well. Raises
        `ConfigError` for a node that is alone, as all of these do."""
        return ClusterAdmin(self._ask).describe()

    def describe_partitions(self, name: str) -> list[PartitionPlace]:
        """Returns the leader and the replicas of each partition of a topic."""
        return ClusterAdmin(self._ask).places(as_topic(name))

    def elect_leaders(
        self, topic: str | None = None, partition: int | None = None, *, unclean: bool = False
    ) -> int:
        """Makes the first replica of each partition lead (None: of all), where it is in sync; how
        many have another leader by that. `unclean`: where nobody of the in-sync replicas is there,
        have any replica lead that is; records that it does not have are lost."""
        return ClusterAdmin(self._ask).elect(topic, partition, unclean=unclean)

    def reassign_partition(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Moves a partition to these brokers, the preferred leader first, or gives it so many
        replicas: those that it has stay as far as they can. It goes on in the background:
        `describe_partitions` shows it as `target` until then. Raises `ConfigError`, also for fewer
        replicas than `min_insync_replicas`."""
        ClusterAdmin(self._ask).reassign(as_topic(topic), partition, replicas, replication_factor)

    def reassign_topic(
        self,
        topic: str,
        replicas: Sequence[int] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """The same for all partitions of a topic. Each of the brokers comes first in turn."""
        ClusterAdmin(self._ask).reassign(as_topic(topic), None, replicas, replication_factor)

    def remove_broker(self, broker: int) -> None:
        """Takes a broker that is stopped for good out of the quorum, and off the list if it has no
        replicas any more. Raises `ConfigError` while it is up."""
        ClusterAdmin(self._ask).remove(broker)

    def drain_broker(self, broker: int, *, undo: bool = False) -> DrainStatus:
        """Before maintenance: have other in-sync replicas lead what this broker leads, 100
        partitions at a time, and let it lead nothing that they could until it comes back from a
        restart, or `undo`. It stays in sync meanwhile. Ask `describe_drain` how far that is; what
        has no other replica in sync stays where it is until it has. Raises `ConfigError`."""
        return ClusterAdmin(self._ask).drain(broker, undo=undo)

    def describe_drain(self, broker: int) -> DrainStatus:
        """How much a broker still leads, and which of it nobody else could lead now."""
        return ClusterAdmin(self._ask).drain_status(broker)

    # --- groups ---
    def list_groups(self) -> list[GroupListing]:
        """All groups that have members or committed offsets, sorted by name."""
        return self._groups().listed()

    def describe_group(self, group: str, *, sample: float = 0.0) -> GroupDescription:
        """A group: its members, what it has committed, its lag in records and in seconds. With
        `sample` the movements of so many seconds give `drain_seconds`. Raises `GroupError` for a
        group that is not there."""
        return self._groups().describe(group, sample)

    def describe_share_group(self, group: str, *, sample: float = 0.0) -> ShareGroupDescription:
        """How far the workers of a share group are, by partition; one that is not there has none.
        Its members are told by `describe_group`. With `sample` the lag of so many seconds gives
        `drain_seconds`."""
        return self._shares().describe(group, sample)

    def scale_group(
        self, group: str, *, lag_seconds: float = 60.0, within: float = 600.0, sample: float = 5.0
    ) -> GroupScale:
        """How many members a group needs to have a lag of `lag_seconds` at most within `within`
        seconds, by what comes and what its members do during a sample of so many seconds."""
        return scaling.watch(
            self.describe_group, self.describe_share_group, group,
            lag_seconds=lag_seconds, within=within, sample=sample,
        )  # fmt: skip

    def peek_share_group(
        self,
        group: str,
        topic: str,
        *,
        state: JobState | None = None,
        partitions: int | Sequence[int] | None = None,
        limit: int = PEEK_LIMIT,
        values: bool = True,
    ) -> list[PeekedJob]:
        """Looks at jobs of a share group, in the order of their offsets, without leasing them: at
        most so many of each partition that are "ready", "behind" others of their key, "leased",
        "waiting", "condemned" or "new" (no worker had them yet); None: of each of these. Without
        `values` nothing is read but what the coordinator knows. Needs to describe the group and to
        read the topic."""
        self._check_attached()
        info = self._find(topic)
        peek = JobPeek(self._ask, self._socket, self._client_id, self._session, self._timeout)
        return peek.look(group, info, state, partitions, limit, values=values)

    def hot_keys(
        self,
        topic: str,
        *,
        partitions: int | Sequence[int] | None = None,
        keys: int = hot.SHOWN,
        sample: int = hot.SAMPLE,
    ) -> list[HotPartition]:
        """The most frequent keys among the newest `sample` offsets of each partition, each
        partition's part of the topic's load, and advice where one key makes it hot. Needs to read
        the topic."""
        self._check_attached()
        return hot.look(
            self._socket, self._find(topic), partitions, keys=keys, sample=sample,
            client_id=self._client_id, timeout=self._timeout,
        )  # fmt: skip

    def pause_share_group(self, group: str, *, reason: str = "") -> None:
        """Lets no worker get further jobs of a share group; answers are taken, waits go on. One
        that is paused stays so, as it is. Raises `GroupError` for a group that is not there."""
        self._shares().pause(group, reason)

    def resume_share_group(self, group: str) -> None:
        """Lets a share group deliver again, by whom it was paused; its breaker begins to count."""
        self._shares().resume(group)

    def _shares(self) -> ShareGroupAdmin:
        self._check_attached()
        return ShareGroupAdmin(self._ask, self._session, self._timeout)

    def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        to: Offset | str | int | datetime,
        partitions: int | Sequence[int] | None = None,
        dry_run: bool = False,
        allow_redelivery: bool = False,
    ) -> list[OffsetReset]:
        """Lets a group go on elsewhere, also while it has members: they go on there, and what they
        had in their hands they cannot commit any more.

        `to` is "earliest", "latest", an offset, a time (the first batch at or after it), or an
        `Offset`; `Offset.relative` counts from what is committed (nothing: from the log start).
        Of a share group `before` is the first offset that is not done, and workers cannot answer
        any more for what they have. `dry_run` only tells what would change. Raises
        `OffsetOutOfRangeError`, `UnknownTopicError`, and `GroupError` for an at-most-once group
        that would go back without `allow_redelivery`.
        """
        return self._groups().reset(
            group, topic, Offset.of(to), partitions, dry_run=dry_run,
            allow_redelivery=allow_redelivery,
        )  # fmt: skip

    def report_offsets(
        self, group: str, topic: str, offsets: Mapping[int, tuple[int, int]]
    ) -> None:
        """Sets how far a group without members is, for a program that works in its name.

        `offsets` has an offset for each partition, with the leader epoch of the record before it.
        The call creates a missing group. Like a commit it takes `read` of the group and the
        topic. Raises `GroupError` while the group has members.
        """
        self._groups().report(group, topic, offsets)

    def export_offsets(self, group: str) -> ExportedOffsets:
        """Returns the offsets that a group has committed; its `to_json` makes a document.

        Raises `GroupError` if the group has committed nothing.
        """
        return self._groups().exported(group)

    def import_offsets(
        self,
        group: str,
        offsets: ExportedOffsets,
        *,
        dry_run: bool = False,
        by_name: bool = False,
        clamp: bool = False,
        allow_redelivery: bool = False,
    ) -> list[OffsetReset]:
        """Sets the committed offsets of a group without members to exported ones.

        Partitions that are not in the export stay as they are. The call checks everything before
        it sets anything. The coordinator checks again, 1000 partitions at a time: after an
        interruption, do it again.

        `by_name`: topics that were made again, or are on another node, count as the same. `clamp`:
        an offset outside its log becomes the nearest one there is. `dry_run` only tells what would
        change. Raises `GroupError` while the group has members, and for an at-most-once group that
        would go back without `allow_redelivery`; `OffsetOutOfRangeError`, `UnknownTopicError`."""
        return self._groups().imported(
            group, offsets, dry_run=dry_run, by_name=by_name, clamp=clamp,
            allow_redelivery=allow_redelivery,
        )  # fmt: skip

    def delete_group(self, group: str, *, topic: str | None = None) -> None:
        """Forgets what a group has committed (of `topic`: only there). Raises `GroupError` while it
        has members."""
        self._groups().delete(group, topic)

    # --- transactions ---
    def list_transactions(self) -> list[TransactionDescription]:
        """All transactional ids, sorted: what is open, and for how long."""
        return listed(lambda request: self._ask(request, Transactions))

    def _groups(self) -> GroupAdmin:
        self._check_attached()
        return GroupAdmin(self._ask, self._session, self._find, self._timeout)

    # --- access ---
    def list_access(self) -> list[AccessEntry]:
        """All access entries. While there are none and no keys, everybody may do everything."""
        return AccessAdmin(self._ask).entries()

    def add_access(self, *entries: AccessEntry) -> int:
        """Adds entries; how many were not there yet. They hold at once, for the gateway within a
        second. Raises `ConfigError`."""
        return AccessAdmin(self._ask).add(entries)

    def remove_access(self, *entries: AccessEntry) -> int:
        """Removes exactly these entries; how many were there."""
        return AccessAdmin(self._ask).remove(entries)

    def list_quotas(self) -> list[QuotaSetting]:
        """All quotas of principals and client ids."""
        return AccessAdmin(self._ask).quotas()

    def set_quota(self, quota: QuotaSetting) -> None:
        """Puts a quota in the place of the one for the same principal and client id; one without
        any bound takes it away. Raises `ConfigError`."""
        AccessAdmin(self._ask).set_quota(quota)

    def list_limits(self) -> list[LimitSetting]:
        """The limits of namespaces."""
        return AccessAdmin(self._ask).limits()

    def list_uses(self) -> list[LimitUse]:
        """How much namespaces have, and may have: those that have limits, and those of keys. Bytes,
        shared memory and connections are those of the broker that is asked."""
        return AccessAdmin(self._ask).uses()

    def set_limits(self, limits: LimitSetting) -> None:
        """Puts limits in the place of those of the same namespace."""
        AccessAdmin(self._ask).set_limits(limits)

    # --- the node ---
    def list_clients(self, broker: int | None = None) -> list[ClientInfo]:
        """The producers, consumers and admins that are attached to a node, and since when; this
        admin too. Of a cluster, by `tcp://`: those of each broker that is up, or of `broker` alone;
        by the local socket those of that node. One client has an attachment at each broker that it
        uses."""
        clients = NodeAdmin(self._ask)
        if broker is not None or self._session.far is None or not self._session.is_clustered:
            return clients.listed(broker)
        up = [each.broker for each in self.describe_cluster().brokers if each.state == "up"]
        return [client for each in up for client in clients.listed(each)]

    def kick_client(self, client: str) -> None:
        """Ends the connection of the client with this id (`ClientInfo.id`).

        The client hears who did that, and may connect again: revoke its key or its access to keep
        it away. Its records and commits stay. A member of a group keeps its partitions for its
        session timeout. Raises `ConfigError` for an id that does not exist (any more).
        """
        NodeAdmin(self._ask).kick(client)

    def list_settings(self, broker: int | None = None) -> list[SettingInfo]:
        """All settings of the node, or of that broker: values, where they come from, and which
        can be changed while it runs."""
        return NodeAdmin(self._ask).settings(broker)

    def alter_settings(
        self, changes: Mapping[str, SettingValue], *, broker: int | None = None
    ) -> list[SettingInfo]:
        """Changes settings of the node, or of that broker, while it runs: all of these or none.
        They hold at once, and after a restart they count more than its command line; None gives a
        setting back. Durations are seconds, sizes bytes. Raises `ConfigError` for a value out of
        range, and for a setting that needs a restart. How the changed settings are now."""
        return NodeAdmin(self._ask).alter(changes, broker)

    def describe_node(self) -> ms.NodeDescription:
        """The node's process, its writers and how much is attached to it."""
        return self._ask(ms.DescribeNode(), ms.NodeDescription)

    def _find(self, name: str) -> ms.TopicInfo:
        return self._ask(ms.FindTopic(as_topic(name)), ms.TopicFound).topic

    def _ask(self, message: msgspec.Struct, expect: type[Reply]) -> Reply:
        self._check_attached()
        return self._session.request(message, expect, self._timeout)

    def _check_attached(self) -> None:
        if self._forked:
            raise er.ForkedClientError(
                "this admin was made before fork(); make a new one in the child process"
            )
        if self._closed:
            raise er.ClosedError("this admin is closed")
        if self._session.farewell() is not None:  # the node went away: it may be back
            session = self._attach()
            self._session.close(polite=False)
            self._session = session

    def _described(self) -> str:
        return f"of {self._socket}, {'closed' if self._closed else 'open'}"

    def close(self) -> None:
        if not self._closed:
            self._session.close()
            fork_safety.forget(self)
            self._closed = True  # last: interrupted, it may be done again

    def __del__(self) -> None:
        """`client.admin().create_topic(...)` leaves nobody who would close it."""
        if not getattr(self, "_closed", True):
            self.close()

    def after_fork_in_child(self) -> None:
        self._forked = True
        if not self._closed:
            self._closed = True
            self._session.close(polite=False)


def _placed(partition: PartitionDescription, place: PartitionPlace) -> PartitionDescription:
    leader = place.leader if place.leader >= 0 else None
    return replace(partition, leader=leader, replicas=tuple(place.replicas), isr=tuple(place.isr))


def is_near(admin: Admin) -> bool:
    """Whether its node is on this host, so that its files and processes can be looked at."""
    session = admin._session
    return session.far is None or session.welcome.boot_id == boot_id()


def is_gone(admin: Admin) -> bool:
    """Whether its node went away, so that the next call attaches again."""
    return admin._session.farewell() is not None


def found(admin: Admin, topic: str) -> ms.TopicInfo:
    """The topic as the node knows it, without a look at its partitions: their brokers may be away.
    Raises `UnknownTopicError`."""
    return admin._find(topic)


def topic_page(admin: Admin, after: str = "") -> TopicPage:
    """Topics whose names sort behind `after`, as a list shows them."""
    admin._check_attached()
    return TopicListing(admin._ask, admin._session, admin._timeout).page(after)
