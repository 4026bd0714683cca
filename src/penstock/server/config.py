"""Settings of a node, checked once. Owns names, defaults and bounds; reads no file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import ConfigError
from penstock.core.header import BATCH_BYTES_MAX
from penstock.ipc import layout as lo
from penstock.ipc.paths import DEFAULT_NODE, check_node_name
from penstock.server.broker.settings import check_clustered, check_whole, parse_quorum
from penstock.server.health.address import check_http_address
from penstock.server.node.log_format import FORMATS

_WHOLE: Final = {
    "lane_capacity": (lo.LANE_CAPACITY_MIN, lo.LANE_CAPACITY_MAX),
    "lanes_max": (1, 65_536),
    "clients_max": (1, lo.CLIENTS_MAX),
    "partitions_max": (1, lo.PAGES_MAX),
    "topics_max": (1, lo.PAGES_MAX),
    "cleaner_rate": (64 << 10, 1 << 40),
    "connections_max": (1, 65_536),
    "client_window": (64 << 10, lo.LANE_CAPACITY_MAX),
    "client_bytes_max": (4 << 20, 1 << 40),
    "principal_bytes_max": (4 << 20, 1 << 40),
}
_SECONDS: Final = {
    "writer_stall_timeout": (1.0, 3600.0),
    "writer_open_timeout": (1.0, 86_400.0),
    "restart_backoff": (0.001, 60.0),
    "restart_backoff_max": (0.001, 600.0),
    "restart_healthy_after": (0.1, 3600.0),
    "drain_timeout": (0.0, 3600.0),
    "lock_timeout": (0.0, 3600.0),
    "hello_timeout": (0.1, 600.0),
    "topic_timeout": (0.1, 600.0),
    "coordinator_timeout": (0.1, 600.0),
    "stall_timeout": (0.05, 3600.0),
    "offsets_retention": (1.0, 100 * 365 * 86_400.0),
    "stage_timeout": (0.5, 7 * 86_400.0),
    "cleaner_interval": (0.05, 86_400.0),
    "writer_spin": (0.0, 0.1),
    "client_heartbeat": (0.05, 60.0),
    "client_silence_max": (0.2, 600.0),
    "gateway_stall_timeout": (0.5, 3600.0),
    "client_absence_max": (0.1, 3600.0),
    "election_timeout": (0.1, 60.0),
    "broker_session_timeout": (0.3, 600.0),
    "replica_lag_time": (0.1, 3600.0),
    "leader_balance_interval": (0.0, 7 * 86_400.0),
}
SHARES_OF_DISK: Final = ("disk_warn", "disk_stop")
"""Settings that are bytes, or a share of the disk."""
DISK_BYTES_MAX: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of one node. Durations are seconds, sizes are bytes."""

    data_folder: str
    """Where everything durable lies. Made (0700) if it is not there; one node at a time holds it.
    It must be on a local file system, because its lock and its mapped segments need one."""

    name: str | None = DEFAULT_NODE
    """Clients find the node by `shm://NAME`, a socket in the user's runtime folder. None: only
    `shm:///DATA/FOLDER` reaches it. One node of a user has a name at a time."""

    writers_max: int | None = None
    """Most writer processes; each starts with its first partition or lane. Partitions beyond that
    share writers. None: the larger of 2 and half the cores. A run that finds lanes of the run
    before keeps that run's number, since lanes are bound to their writer."""

    lane_capacity: int = lo.LANE_CAPACITY_DEFAULT
    """Bytes of frames in a lane whose producer asks for no other size, and the bound of what a
    producer may ask for. A batch takes at most a quarter of its lane. It is shared memory, taken
    when the lane is opened."""

    lanes_max: int = 256
    """Most lanes, one a producer and writer. With `lane_capacity` it bounds the shared memory:
    256 lanes of 4 MiB are 1 GiB of /dev/shm."""

    clients_max: int = 512
    """Most attached clients: producers, consumers and admins together. Each takes up to three
    descriptors of the node, and a slot of the client table."""

    partitions_max: int = 1024
    """Most partitions of all topics together. Each has a page of the state table for the rest of
    the boot, an open file in its writer, and a folder."""

    topics_max: int = 1000
    """Most topics. The catalogue is one file, rewritten whole at each change."""

    writer_stall_timeout: float = 10.0
    """A writer that gives no sign of life for so long, seen twice at least a second apart, is
    killed and replaced. Idle writers give one every half second. Raise it on machines that swap."""

    writer_open_timeout: float = 120.0
    """The same bound while a writer starts or recovers partitions, when it gives no sign of life.
    Raise it where a segment to be recovered takes longer to read than this."""

    restart_backoff: float = 0.02
    """The wait before a dead writer is replaced; each further death doubles it."""

    restart_backoff_max: float = 5.0
    """The longest wait before a dead writer is replaced."""

    restart_healthy_after: float = 2.0
    """A process of the node that lived for so long makes the wait for its next successor
    `restart_backoff` again."""

    drain_timeout: float = 10.0
    """At start: how long clients wait until lanes of the run before are drained and partitions are
    open; then they are admitted, and a warning says what is missing. At a clean stop: how long
    writers may take to drain, sync and close before they are killed."""

    lock_timeout: float = 5.0
    """How long to wait for the folder's lock: the writers of a killed node finish their pass."""

    hello_timeout: float = 5.0
    """A connection that does not say who it is for so long is dropped."""

    topic_timeout: float = 10.0
    """How long a request to create, grow or find a topic waits for the next of its partitions to
    open, and one to delete it for its files to go."""

    coordinator_timeout: float = 10.0
    """How long a request of a group or a transaction waits until it is decided and in the
    coordinator's log. It may still be decided after that: such requests can be repeated."""

    stall_timeout: float = 10.0
    """A member of a group whose process is stopped (SIGSTOP, a debugger's break) for so long loses
    its partitions to others. Slow members lose nothing, however long they take."""

    offsets_retention: float = 7 * 86_400.0
    """How long a group without members keeps its committed offsets. At-most-once groups keep them
    until they are deleted: without them a record could be handed out twice."""

    stage_timeout: float = 900.0
    """How long a stage of a transaction may wait for the commit that names it. Jobs that stage for
    longer cannot commit; and for so long one that died may hold readers back."""

    cleaner_interval: float = 10.0
    """Seconds between two looks of the cleaner process at the topics that have a retention or are
    compacted. It starts with the first such topic."""

    cleaner_rate: int = 32 << 20
    """Most bytes a second that compaction reads and writes, so that live traffic keeps its
    latency. Deleting whole segments reads nothing and is not bounded by this."""

    disk_warn: float = 0.1
    """Room on the disk of the data folder below which the node warns: a share of the disk (below
    1), or bytes. 0: never."""

    disk_stop: float = 0.01
    """Room below which nothing is appended, before the disk is really full: producers wait, as on a
    full disk, and consumers go on. A share of the disk (below 1), or bytes. 0: never."""

    writer_spin: float = 0.0
    """Seconds that a writer goes on looking for records before it sleeps. 0: it sleeps at once, and
    each wake costs what the system takes for one. Each writer that spins keeps a core busy while
    records come; give it one (with fewer, latency gets worse)."""

    listen: str | None = None
    """Where clients on other hosts connect: `tcp://ADDRESS:PORT`, port 0 for any free one (the real
    one is in node.json and in the log). None: nowhere, and there is no gateway process."""

    insecure: bool = False
    """Listen beyond this host without keys all the same: everybody who reaches the port may
    do everything, and everybody on the way can read it. Else only loopback is listened at without
    keys."""

    connections_max: int = 1000
    """Most connections of remote clients. Clients that they attach count for `clients_max` too."""

    client_window: int = 4 << 20
    """Bytes of batches without an answer that a remote producer may have under way to each writer;
    never more than `lane_capacity`."""

    client_bytes_max: int = 128 << 20
    """Bytes that the gateway holds for one connection at most: the windows of its producers, and
    separately what waits to be sent to it. Windows get smaller as this runs out, then producers are
    refused; a connection that does not read is dropped."""

    principal_bytes_max: int = 1 << 30
    """The same bound for all connections of a principal together."""

    client_heartbeat: float = 2.0
    """Seconds between two signs of life of a remote client."""

    client_silence_max: float = 10.0
    """A connection without a sign of life for so long is dropped: its producers' lanes are drained,
    its members of groups have their session timeout to come back."""

    client_absence_max: float = 10.0
    """A remote client without any connection for so long is taken for dead: its open transactions
    are aborted once its lanes are drained, and need not wait for their timeouts."""

    gateway_stall_timeout: float = 10.0
    """A gateway process that gives the node no sign of life for so long is killed and replaced."""

    metrics: str | None = None
    """Where metrics and health are served over HTTP: `HOST:PORT`, such as `127.0.0.1:9641`; port 0
    for any free one (the log says which). None: nowhere."""

    metrics_public: bool = False
    """Lets `metrics` be an address that other hosts reach. Everybody who reaches it reads
    names of topics, groups and processes there, without a password."""

    node_id: int | None = None
    """The number of this broker in its cluster, 1 to 65535, another one for each. None: the node is
    alone. A folder that was a broker's stays one, with its number."""

    cluster_listen: str | None = None
    """Where the other brokers reach this node: `tcp://ADDRESS:PORT`. None: at its own place in
    `controller_quorum`. Beyond loopback, and once clients have keys, it wants `cluster_key`, or
    `insecure`."""

    controller_quorum: str | None = None
    """The brokers that decide for the cluster, the same for all: `1@HOST:PORT,2@HOST:PORT`, 1, 3
    or 5 of them (7 at most), each with its `cluster_listen`. Most of them must be up."""

    replication_port: int = 0
    """The port at which this broker's replicas are fetched, at the host of `cluster_listen`. 0: any
    free one, which the others are told."""

    advertise: str | None = None
    """Where clients find this broker, `tcp://HOST:PORT`, where that is not `listen` with its real
    port: behind a proxy, or with `listen` at all addresses (0.0.0.0)."""

    rack: str = ""
    """The rack of this broker: replicas of a partition are put into different racks if there are
    enough."""

    cluster_key: str | None = None
    """A file with the key that all brokers of the cluster have: what they say to each other is
    encrypted, and nobody without it is heard. None: in the clear."""

    election_timeout: float = 1.0
    """Without a word from the active controller for so long another one is elected."""

    broker_session_timeout: float = 1.5
    """A broker without a heartbeat for so long is fenced: others lead what it led."""

    replica_lag_time: float = 5.0
    """A follower that did not reach its leader's log end for so long is in sync no more."""

    leader_balance_interval: float = 300.0
    """Seconds between two looks of the active controller at partitions whose first replica could
    lead and does not: it does then, a bounded number of them at a time. 0: never."""

    log_format: str = "text"
    """How node and writers write log lines on stderr: `text`, or `json`, one object a line."""

    def __post_init__(self) -> None:
        if not self.data_folder or "\0" in self.data_folder:
            raise ConfigError(f"data_folder is {self.data_folder!r}: name a folder")
        object.__setattr__(self, "data_folder", os.path.abspath(self.data_folder))
        if self.name is not None:
            check_node_name(self.name)
        if self.log_format not in FORMATS:
            raise ConfigError(
                f"log_format is {self.log_format!r}: allowed are {', '.join(FORMATS)}"
            )
        if self.writers_max is not None:
            check_whole("writers_max", self.writers_max, 1, lo.WRITERS_MAX)
        for field, (low, high) in _WHOLE.items():
            check_whole(field, getattr(self, field), low, high)
        if self.lane_capacity % 4096:
            raise ConfigError(f"lane_capacity is {self.lane_capacity}: use a multiple of 4096")
        for field, (least, most) in _SECONDS.items():
            _check_seconds(field, getattr(self, field), least, most)
        for field in SHARES_OF_DISK:
            _check_room(field, getattr(self, field))
        if self.listen is not None:
            check_listen(self.listen)
        for field in ("metrics_public", "insecure"):
            if not isinstance(getattr(self, field), bool):
                raise ConfigError(
                    f"{field} is {getattr(self, field)!r}: allowed are true and false"
                )
        if self.metrics is not None:
            check_http_address(self.metrics, public=self.metrics_public)
        if self.client_silence_max < 2 * self.client_heartbeat:
            raise ConfigError(
                f"client_silence_max is {self.client_silence_max:g}, less than twice "
                f"client_heartbeat {self.client_heartbeat:g}"
            )
        if self.restart_backoff_max < self.restart_backoff:
            raise ConfigError(
                f"restart_backoff_max is {self.restart_backoff_max:g}, below restart_backoff "
                f"{self.restart_backoff:g}"
            )
        check_clustered(self)
        if self.cluster_listen is None and self.node_id is not None:
            object.__setattr__(self, "cluster_listen", self.voters[self.node_id])

    @property
    def voters(self) -> dict[int, str]:
        """Where each broker of the controller quorum is reached; empty for a node that is alone."""
        return parse_quorum(self.controller_quorum) if self.controller_quorum is not None else {}

    @property
    def cluster_host(self) -> str:
        """The host under which the other brokers reach this one."""
        assert self.cluster_listen is not None
        url = self.voters.get(self.node_id or 0, self.cluster_listen)
        return url.removeprefix("tcp://").rpartition(":")[0]

    @property
    def writers(self) -> int:
        """The number of writers that this configuration asks for."""
        if self.writers_max is not None:
            return self.writers_max
        return min(max(2, (os.cpu_count() or 1) // 2), lo.WRITERS_MAX)

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that fits a lane of this node."""
        return min(self.lane_capacity // lo.FRAME_SHARE - lo.FRAME_BYTES, BATCH_BYTES_MAX)


def put_in_place(config: NodeConfig, checked: NodeConfig, names: Iterable[str]) -> None:
    """Gives these settings of `config` the values in `checked`. Code that reads them at each use
    has them from now on; things made of the old values stay (`node.live_settings`)."""
    for name in names:
        object.__setattr__(config, name, getattr(checked, name))


def allowed_of(name: str) -> str:
    """The range of a setting in words; empty where it has none."""
    if name in _WHOLE:
        return "{}..{}".format(*_WHOLE[name])
    if name in _SECONDS:
        return "{:g}..{:g} s".format(*_SECONDS[name])
    return "a share of the disk below 1, or bytes" if name in SHARES_OF_DISK else ""


def check_listen(url: str) -> tuple[str, int]:
    """The address and port that a listening URL names. Raises `ConfigError`."""
    scheme, _, place = url.partition("://")
    host, _, port = place.rpartition(":")
    if scheme != "tcp" or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"listen is {url!r}: write tcp://ADDRESS:PORT, such as tcp://127.0.0.1:9640"
        )
    return host, int(port)


def _check_seconds(field: str, value: object, low: float, high: float) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise ConfigError(f"{field} is {value!r}: allowed are {low:g}..{high:g} seconds")


def _check_room(field: str, value: object) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not numeric or not 0 <= value <= DISK_BYTES_MAX:  # type: ignore[operator]
        raise ConfigError(
            f"{field} is {value!r}: allowed are a share of the disk from 0 to below 1, or bytes"
        )
