"""A cluster of gateways that do what a test tells them: one truth of who leads what and of what is
in the logs, and brokers that may be late, wrong about it, silent or gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from fake_gateway import GatewayDouble

from penstock.cluster.frames import messages as fr
from penstock.core import header as hd
from penstock.core.errors import ErrorCode
from penstock.ipc import coordination as co
from penstock.ipc import layout as lo
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms

CLUSTER = b"c" * 16
TOPIC = "orders"
TOPIC_ID = b"t" * 16
FIRST_PAGE = 40
SENT_AWAY = -1
_REQUESTS: Any = ms.FindTopic | ms.ListTopics | ms.TrimPartition | co.Request | lk.Request


class Log:
    """A partition, as all of its replicas have it."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.epoch = 1
        self.epochs = [(1, 0)]
        self.batches: list[bytes] = []
        self.end = 0
        self.durable = 0
        self._known: dict[tuple[int, int, int], int] = {}

    def append(self, payload: bytes) -> int:
        """Where it stands, from now on or already."""
        head = hd.parse(payload)
        key = head.producer_id, head.producer_epoch, head.base_sequence
        if key not in self._known:
            header = bytearray(payload[: hd.HEADER_BYTES])
            hd.stamp(
                header, base_offset=self.end, leader_epoch=self.epoch, generation=1,
                append_timestamp=5,
            )  # fmt: skip
            self.batches.append(bytes(header) + payload[hd.HEADER_BYTES :])
            self._known[key] = self.end
            self.end += head.last_offset_delta + 1
        return self._known[key]

    def state(self) -> fr.PageState:
        return fr.PageState(
            self.page, TOPIC_ID, self.page - FIRST_PAGE, lo.STATUS_ONLINE, 0, 1, self.epoch, 0,
            self.durable, self.end, self.end, self.end, self.epochs,
        )  # fmt: skip


class ClusterDouble:
    """`leaders`: by page. `with` starts its brokers, numbered from 1, and closes them."""

    def __init__(
        self, brokers: int = 3, partitions: int = 3, silence_max: float = 5.0, **options: Any
    ) -> None:
        self.lock = threading.RLock()
        self.pages = [FIRST_PAGE + number for number in range(partitions)]
        self.logs = {page: Log(page) for page in self.pages}
        self.leaders = {page: 1 + at % brokers for at, page in enumerate(self.pages)}
        self.coordinator = 2
        self.version = 10
        self.is_deleted = False
        self.uncommitted: set[int] = set()
        """Pages that have too few replicas in sync."""
        self.brokers: dict[int, BrokerDouble] = {}
        for number in range(1, brokers + 1):
            self.brokers[number] = BrokerDouble(self, number, silence_max=silence_max, **options)
        self.urls = {number: broker.url for number, broker in self.brokers.items()}
        self.tell()

    @property
    def url(self) -> str:
        return self.brokers[1].url

    def said(self, **otherwise: Any) -> fr.Leaders:
        what = {
            "version": self.version,
            "brokers": list(self.urls.items()),
            "leaders": [(page, broker) for page, broker in self.leaders.items() if broker > 0],
            "coordinator": self.coordinator,
        }
        return fr.Leaders(**{**what, **otherwise})

    def tell(self) -> None:
        """Every broker knows how it is, and says so."""
        with self.lock:
            self.version += 1
            for broker in self.brokers.values():
                broker.announce(self.said())

    def move(self, page: int, to: int, *, tell: bool = True) -> None:
        """That page is led by another broker, in another epoch."""
        with self.lock:
            self.leaders[page] = to
            if to > 0:
                log = self.logs[page]
                log.epoch += 1
                log.epochs.append((log.epoch, log.end))
        if tell:
            self.tell()

    def kill(self, number: int) -> None:
        """As a broker that was killed; the others do not know yet."""
        self.brokers.pop(number).close()

    def bury(self, number: int, heir: int) -> None:
        """The others know, and one of them leads what it has led."""
        self.urls.pop(number)
        if self.coordinator == number:
            self.coordinator = heir
        for page, leader in self.leaders.items():
            if leader == number:
                self.move(page, heir, tell=False)
        self.tell()

    def values(self, page: int) -> int:
        """How many records stand there."""
        return self.logs[page].end

    def __enter__(self) -> ClusterDouble:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.close()


class BrokerDouble(GatewayDouble):
    """One of them. `holds_back`: answers to batches wait for `let_go`. `refuses`: pages that it
    leads and does not know it. `asked`: requests by kind."""

    def __init__(self, cluster: ClusterDouble, number: int, **options: Any) -> None:
        self.cluster = cluster
        self.number = number
        self.holds_back = False
        self.refuses: set[int] = set()
        self.sends_away = ""
        """Why whoever attaches is refused, while `lets_in` is false."""
        self.asked: list[str] = []
        self.attached_kinds: list[tuple[int, int | None]] = []
        self.flags: list[int] = []
        self.told: list[fr.Positions] = []
        self._held: list[Callable[[], None]] = []
        self._peers: set[bytes] = set()
        self._attached: dict[tuple[bytes, int], None] = {}
        self._epochs: dict[tuple[bytes, int, int], int] = {}
        self._cursors: dict[tuple[bytes, int, int], list[int]] = {}
        super().__init__(node_uuid=bytes([number]) * 16, cluster=CLUSTER, broker=number, **options)

    def announce(self, said: fr.Leaders) -> None:
        self.leaders = said
        for peer in list(self._peers):
            self.say(peer, said)

    def let_go(self) -> None:
        def send() -> None:
            self.holds_back = False
            held, self._held = self._held, []
            for answer in held:
                answer()

        self._orders.put(send)

    def end_all(self, why: str) -> None:
        """End all endpoints, and leave the connections."""

        def send() -> None:
            self._cursors.clear()
            for peer, endpoint in self._attached:
                self._send(peer, fr.Ended(endpoint, why))
            self._attached.clear()

        self._orders.put(send)

    def leads(self, page: int) -> bool:
        return self.cluster.leaders.get(page) == self.number and page not in self.refuses

    def _take(self, peer: bytes, message: Any, payload: Any) -> None:
        if isinstance(message, fr.Hello):
            self._peers.add(peer)
        super()._take(peer, message, payload)
        with self.cluster.lock:
            match message:
                case fr.Attach():
                    self.attached_kinds.append((message.kind, message.resume))
                    self._attached[peer, message.endpoint] = None
                    if self.sends_away:
                        why = fr.Refused(message.endpoint, "ResourceLimitError", self.sends_away)
                        self._send(peer, why)
                case fr.Detach():
                    for key in [
                        key for key in self._cursors if key[:2] == (peer, message.endpoint)
                    ]:
                        del self._cursors[key]
                case fr.Ask():
                    self._asked(peer, message)
                case fr.Produce():
                    self._produced(peer, message, bytes(payload))
                case fr.Fetch():
                    self._fetch(peer, message)
                case fr.More():
                    key = peer, message.endpoint, message.cursor
                    if key in self._cursors:
                        self._cursors[key][2] += message.credit
                        self._push(key)
                case fr.Drop():
                    self._cursors.pop((peer, message.endpoint, message.cursor), None)
                case fr.Positions():
                    self.told.append(message)

    # --- batches ---
    def _produced(self, peer: bytes, message: fr.Produce, payload: bytes) -> None:
        cluster, page = self.cluster, message.page
        self.flags.append(message.flags)
        log = cluster.logs[page]
        states: list[fr.PageState] = []
        if cluster.is_deleted:
            ack = fr.Ack(message.sequence, 0, 0, ErrorCode.WRONG_TOPIC_ID, 0)
        elif not self._takes(peer, message, log.epoch):
            ack = fr.Ack(message.sequence, 0, 0, ErrorCode.NOT_LEADER, 0)
        else:
            ack = fr.Ack(message.sequence, log.append(payload), 5, 0, log.epoch)
            log.durable = log.end if message.flags & lo.FRAME_SYNC else log.durable
            states = [log.state()]
            if page in cluster.uncommitted:
                ack = fr.Ack(message.sequence, 0, 0, ErrorCode.NOT_COMMITTED, log.epoch)
        acks = fr.Acks(message.endpoint, message.writer, [ack], states)
        if self.holds_back:
            self._held.append(lambda: self._send(peer, acks))
        else:
            self._send(peer, acks)
        for key in list(self._cursors):
            self._push(key)

    def _takes(self, peer: bytes, message: fr.Produce, epoch: int) -> bool:
        """An endpoint sends to each partition in one leader epoch only, and no more once something
        was sent away."""
        key = peer, message.endpoint, message.page
        if not self.leads(message.page):
            self._epochs[key] = SENT_AWAY
        return self._epochs.setdefault(key, epoch) == epoch

    # --- cursors ---
    def _fetch(self, peer: bytes, message: fr.Fetch) -> None:
        if self._ends(peer, message.endpoint, message.cursor, message.page, message.offset):
            return
        key = peer, message.endpoint, message.cursor
        self._cursors[key] = [message.page, message.offset, message.credit]
        self._push(key)

    def _ends(self, peer: bytes, endpoint: int, cursor: int, page: int, offset: int) -> bool:
        if self.cluster.is_deleted:
            error = "UnknownTopicError"
        elif not self.leads(page):
            error = "NotLeaderError"
        else:
            return False
        self._send(peer, fr.CursorFailed(endpoint, cursor, offset, error, "go elsewhere"))
        return True

    def _push(self, key: tuple[bytes, int, int]) -> None:
        peer, endpoint, cursor = key
        page, offset, credit = self._cursors[key]
        if self._ends(peer, endpoint, cursor, page, offset):
            del self._cursors[key]
            return
        log = self.cluster.logs[page]
        for batch in log.batches:
            head = hd.parse(batch)
            if head.base_offset >= offset and credit > 0:
                said = fr.Fetched(
                    endpoint, cursor, offset, head.next_offset, 0, [log.state()], log.epoch
                )
                self._send(peer, said, batch)
                offset, credit = head.next_offset, credit - len(batch)
        self._cursors[key] = [page, offset, credit]

    # --- requests ---
    def _asked(self, peer: bytes, ask: fr.Ask) -> None:
        request = msgspec.msgpack.decode(ask.body, type=_REQUESTS)
        self.asked.append(type(request).__name__)
        cluster = self.cluster
        body: Any = ms.Refused("NotLeaderError", "it is led elsewhere")
        pages: list[fr.PageState] = []
        match request:
            case ms.FindTopic() if cluster.is_deleted:
                body = ms.Refused("UnknownTopicError", "no such topic")
            case ms.FindTopic():
                info = ms.TopicInfo(TOPIC, TOPIC_ID, cluster.pages, ms.TopicSettings())
                body = ms.TopicFound(info)
                for page, log in cluster.logs.items():  # as a follower has them: behind
                    following = fr.PageState(
                        page, TOPIC_ID, page - FIRST_PAGE, lo.STATUS_FOLLOWING, 0, 1, 0, 0, 0, 0, 0,
                        0,
                    )  # fmt: skip
                    pages.append(log.state() if self.leads(page) else following)
            case ms.TrimPartition() if self.leads(cluster.pages[request.partition]):
                body = ms.Cleaned(request.before, 0, 0)
            case lk.LookUpPages() if all(map(self.leads, request.pages)):
                body = lk.PagesLookedUp(request.pages, [0] * 5)
                pages = [cluster.logs[page].state() for page in request.pages]
            case lk.LookUpAppends() if all(self.leads(place.page) for place in request.places):
                body = lk.AppendsLookedUp([float(place.page) for place in request.places])
            case lk.LookUpTime() if self.leads(request.page):
                body = lk.TimeLookedUp(7)
            case co.ListGroups() if cluster.coordinator == self.number:
                body = co.Groups([], False)
        self.answer(peer, ask, body, *pages)
