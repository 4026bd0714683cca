"""Brokers without nodes: real replicators, writers, lanes and logs over loopback, each loop on a
thread, and the real controller's machine in the test's hands.

A broker that is killed leaves its logs and its state table; its next life has another writer and
another replicator. Every wait is for a condition, with a bound.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from node_helpers import eventually
from store_crash import memory
from unit.core.log_helpers import make_batch

from penstock.cluster.controller import Controller
from penstock.cluster.controller.machine import ControllerConfig
from penstock.cluster.decisions import Decision
from penstock.cluster.replica import LogEnd
from penstock.core.epochs import load_epochs
from penstock.core.reader import Limit, LogReader
from penstock.core.storage import Storage
from penstock.ipc import clients as client_table
from penstock.ipc import layout as lo
from penstock.ipc import messages as ms
from penstock.ipc import shm
from penstock.ipc.channel import Channel, pair
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import Ack, LaneIdentity, LaneSender, format_lane
from penstock.ipc.replicated import ReplicaRole
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage, format_table
from penstock.ipc.writer import Writer
from penstock.security.keys import ServerKey
from penstock.server.config import NodeConfig
from penstock.server.replicator import messages as rm
from penstock.server.replicator.loop import Replicator

TOPIC = bytes(range(16))
PAGES = 8
CLUSTER = b"cluster of a test"
PUMP = 0.005
HEARTBEAT = 0.1
GENERATIONS = itertools.count(1)
"""Of writers, over all worlds."""

_numbers = itertools.count()


class FakeSession:
    """What an attachment is to a replicator: tables, a doorbell, and lanes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.writers = 1
        self.state = broker.state
        self.doorbell = Doorbell()
        self.slot: ClientSlot | None = ClientSlot(broker.clients, 0)
        self.slot.assign(os.getpid(), 1, lo.KIND_REPLICATOR)
        self._end, self._far = pair()

    def page(self, index: int) -> StatePage:
        return StatePage(self.state, index)

    def open_lane(self, writer: int, timeout: float) -> tuple[LaneSender, Doorbell]:
        return self._broker.open_lane(2, self.doorbell, replicates=True)

    def fileno(self) -> int:
        return self._end.fileno()

    def farewell(self) -> str | None:
        return None

    def close(self) -> None:
        self._end.close()
        self._far.close()
        self.doorbell.close()


class Broker:
    """A writer and a replicator on one folder. `lives` counts."""

    def __init__(self, world: World, number: int, lane_capacity: int) -> None:
        self.world = world
        self.number = number
        self.folder = world.root / f"broker-{number}"
        self.folder.mkdir()
        self.lane_capacity = lane_capacity
        self.state = _table(lo.state_table_bytes(PAGES))
        format_table(self.state, bytes(16), PAGES)
        self.clients = _table(lo.client_table_bytes(4))
        client_table.format_table(self.clients, 4)
        self.lives = 0
        self.epoch = 0
        self.url = ""
        self.is_up = False
        self.error: BaseException | None = None
        self.lanes: list[str] = []
        self.counts: dict[str, int] = {}
        self.words: dict[int, Any] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.stands = threading.Event()
        self.turns = 0

    # --- life ---
    def start(self) -> None:
        self.lives += 1
        self.is_up = True
        self.error = None
        self.words = {}
        self._start_writer()
        near, far = pair()
        self._lifeline = Channel(near, inbound=rm.Report)
        config = NodeConfig(
            data_folder=str(self.folder), node_id=self.number, listen="tcp://127.0.0.1:0",
            controller_quorum=f"{self.number}@127.0.0.1:1", lane_capacity=self.lane_capacity,
            replica_lag_time=self.world.lag_time,
        )  # fmt: skip
        session: Any = FakeSession(self)
        self.bell = session.doorbell
        self.order(ms.AddClient(0), [session.doorbell])
        self.replicator = Replicator(
            config, "tcp://127.0.0.1:0", self.world.key, Channel(far, inbound=rm.Order), session
        )
        self.url = self.replicator.bind()
        self._thread = threading.Thread(target=self._run, args=(self.replicator,))
        self._thread.start()

    def _run(self, replicator: Replicator) -> None:
        turn = replicator.turn

        def gated() -> None:
            if not self.gate.is_set():
                self.stands.set()
                self.gate.wait()
                self.stands.clear()
            turn()
            self.turns += 1

        replicator.turn = gated  # type: ignore[method-assign]
        try:
            replicator.run()
        except BaseException as error:
            self.error = error
        replicator.close()

    def _start_writer(self) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders = Channel(near, inbound=ms.WriterReport)
        self._writer_bell = Doorbell()
        self._generation = next(GENERATIONS)
        storage = Storage()
        opened: set[int] = set()  # by this writer, and not by the one before
        self.opened = opened

        def open_role(order: ms.OpenPartition) -> Any:
            role = ReplicaRole.open(
                storage, order, StatePage(self.state, order.page), generation=self._generation,
                batch_bytes_max=1 << 20, now_us=time.time_ns() // 1000,
            )  # fmt: skip
            opened.add(order.page)
            return role

        writer = Writer(
            0, self._generation, channel=Channel(far, inbound=ms.WriterOrder),
            doorbell=_second(self._writer_bell), state=self.state, clients=self.clients,
            open_role=open_role,
        )  # fmt: skip
        self._writer = threading.Thread(target=writer.run, args=(os.getpid(),))
        self._writer.start()

    def order(self, order: ms.WriterOrder, bells: list[Doorbell] | None = None) -> None:
        self._orders.send(order, [bell.fileno() for bell in bells or []])
        self._writer_bell.ring()

    def open_lane(
        self, producer: int, bell: Doorbell, *, replicates: bool = False
    ) -> tuple[LaneSender, Doorbell]:
        name = shm.object_name(
            f"{os.getpid():032x}", "lane", producer, 0, next(_numbers) + (self.number << 20)
        )
        fd = shm.create(name, lo.lane_bytes(self.lane_capacity))
        self.lanes.append(name)
        region = Region.of_fd(os.dup(fd))
        format_lane(region, LaneIdentity(self.lane_capacity, producer, 0, 0, os.getpid(), 1, 1))
        region.close()
        self.order(ms.AddLane(name, False, replicates), [bell])
        return LaneSender(Region.of_fd(fd), name), _second(self._writer_bell)

    def open(self, page: int, topic: World.Topic) -> None:
        """Have the writer open a partition, if it has not yet in this life."""
        if page in self.words:
            return
        folder = self.folder / f"topic-{page}"
        folder.mkdir(exist_ok=True)
        self.order(
            ms.OpenPartition(
                page, "t", TOPIC, page, str(folder), topic.settings, False, "boot", True
            )
        )

    def restart_writer(self) -> None:
        """Its process dies, and another one takes its place; lanes are drained by that."""
        self._orders.close()
        self._writer_bell.ring()
        self._writer.join(45)
        assert not self._writer.is_alive()
        bell = self._writer_bell
        self._start_writer()
        for page in self.words:
            topic = self.world.topics[page]
            folder = self.folder / f"topic-{page}"
            order = ms.OpenPartition(
                page, "t", TOPIC, page, str(folder), topic.settings, False, "boot", True
            )
            self.order(order)
        for name in self.lanes:
            self.order(ms.AddLane(name, False, name == self.lanes[0]), [self.bell])
        self.order(ms.AddClient(0), [self.bell])
        # Senders ring the doorbell that they were given: it stays the writers' (rule 10).
        self._forward = threading.Thread(
            target=_forward, args=(bell, self._writer_bell), daemon=True
        )
        self._forward.start()
        for page in list(self.words):
            self.tell(rm.Opened(page))

    def kill(self) -> None:
        """Both processes are gone at once. What they share with nobody is gone with them."""
        self.gate.set()
        self.is_up = False
        self._lifeline.close()
        self._orders.close()
        self._writer_bell.ring()
        for thread in (self._thread, self._writer):
            thread.join(45)
            assert not thread.is_alive()
        for name in self.lanes:
            shm.unlink(name)
        self.lanes = []
        if self.error is not None:
            raise self.error

    def trim(self, before: int, page: int = 0) -> None:
        """As retention does where it leads."""
        self.order(ms.TrimLog(page, 1, before))

    def cleaned(self, order: ms.SwapLog) -> ms.LogCleaned:
        """As the cleaner has it done: the writer's answer."""
        self.order(order)
        while True:
            received = self._orders.recv(10.0)
            assert received is not None
            if isinstance(received[0], ms.LogCleaned) and received[0].ticket == order.ticket:
                return received[0]

    def pause(self) -> None:
        """The replicator hangs, from the end of its turn on: `stands`."""
        self.gate.clear()

    def look(self) -> None:
        """Wait until the replicator has seen what there is, and has said what follows from it."""
        begun = self.turns
        eventually(lambda: self.turns >= begun + 2, "two turns of the replicator")

    def go_on(self) -> None:
        self.gate.set()

    # --- the node's part ---
    def tell(self, order: rm.Order) -> None:
        with contextlib.suppress(Exception):
            self._lifeline.send(order)

    def reports(self) -> list[rm.Report]:
        found = []
        while self.is_up:
            try:
                received = self._lifeline.recv_nowait()
            except (BlockingIOError, Exception):
                break
            if received is None:
                break
            found.append(received[0])
        return found

    # --- what can be seen ---
    def page(self, index: int = 0) -> StatePage:
        return StatePage(self.state, index)

    def batches(self, index: int = 0, upto: int | None = None) -> list[tuple[int, int, bytes]]:
        """(base offset, leader epoch, the rest of the bytes) of every batch of its log."""
        page = self.page(index)
        end = page.log_end if upto is None else upto
        reader = LogReader(Storage(), str(self.folder / f"topic-{index}"), page.log_start)
        found = []
        while reader.offset < end:
            limit = Limit(end, *page.segment(), page.log_start)
            for head, view, at in reader.fetch(limit, 1 << 20, every=True):
                body = bytes(view[at : at + head.length])
                found.append((head.base_offset, head.leader_epoch, body))
        reader.close()
        return found

    def epochs(self, index: int = 0) -> tuple[tuple[int, int], ...]:
        cache = load_epochs(Storage(), str(self.folder / f"topic-{index}"))
        return cache.entries if cache is not None else ()


class Producer:
    """A lane of its own to one broker's writer."""

    def __init__(self, broker: Broker, producer: int = 7) -> None:
        self._bell = Doorbell()
        self.producer = producer
        self._sender, self._ring = broker.open_lane(producer, self._bell)
        self.acks: list[Ack] = []
        self.sent = 0

    def send(self, sequence: int, page: int = 0, body: int = 512, records: int = 1) -> None:
        batch = make_batch(
            sequence, producer=self.producer, body=body, records=records, topic_id=TOPIC,
            partition=page,
        )  # fmt: skip
        self.send_batch(memoryview(batch), page)

    def send_batch(self, batch: memoryview, page: int) -> None:
        def written() -> bool:
            self.acks += self._sender.acks()
            return self._sender.try_write(page, [batch], len(batch)) is not None

        eventually(written, "room in the lane")
        self.sent += 1
        self._ring.ring()

    def settle(self) -> list[Ack]:
        """All answers."""

        def answered() -> bool:
            self.acks += self._sender.acks()
            return len(self.acks) == self.sent

        eventually(answered, "every batch is answered")
        return self.acks


class World:
    """Brokers, and the controller. Its thread carries reports and words to and fro."""

    class Topic:
        def __init__(self, settings: ms.TopicSettings) -> None:
            self.settings = settings

    def __init__(
        self,
        root: Path,
        brokers: int = 3,
        *,
        lag_time: float = 1.0,
        lane_capacity: int = 1 << 20,
        key: ServerKey | None = None,
    ) -> None:
        self.root = root
        self.lag_time = lag_time
        self.key = key
        self.topics: dict[int, World.Topic] = {}
        self.controller = Controller(ControllerConfig(session_timeout=0.8))
        self.lock = threading.RLock()
        self.refused = 0
        self.changes = 0
        self.ends: list[tuple[int, LogEnd]] = []
        """What brokers have told of partitions that nobody leads."""
        self.brokers = {n: Broker(self, n, lane_capacity) for n in range(1, brokers + 1)}
        self.urls: dict[tuple[int, int], str] = {}
        """Another URL for a broker, for one that is to reach it by that."""
        self._stop = threading.Event()
        self._told: dict[int, Any] = {}
        self._pump = threading.Thread(target=self._run)
        self._pump.start()
        for number in self.brokers:
            self.start(number)

    # --- brokers ---
    def start(self, number: int, *, was_clean: bool = True) -> None:
        broker = self.brokers[number]
        broker.start()
        with self.lock:
            now = time.monotonic()
            answer = self._decide(
                self.controller.register(
                    now, number, b"%d-%d" % (number, broker.lives), b"%d" % number, (broker.url,),
                    was_clean=was_clean,
                )
            )  # fmt: skip
            broker.epoch = answer.broker_epoch
            self._told.pop(number, None)
            self._beat(broker)

    def kill(self, number: int) -> None:
        self.brokers[number].kill()

    def _beat(self, broker: Broker) -> None:
        self._decide(
            self.controller.heartbeat(
                time.monotonic(), broker.number, broker.epoch, is_current=True, is_leaving=False
            )
        )

    def _decide(self, decision: Decision[Any]) -> Any:
        for record in decision.records:
            self.controller.replay(record)
        if decision.records:
            self._spread()
        return decision.answer

    def _spread(self) -> None:
        image = self.controller.image
        for broker in self.brokers.values():
            if broker.is_up:
                self._tell(broker, image)

    def _tell(self, broker: Broker, image: Any) -> None:
        living = {
            n: (epoch, self.urls.get((broker.number, n), self.brokers[n].url))
            for n, epoch in image.living().items()
        }
        known = (broker.epoch, living)
        if self._told.get(broker.number) != known:
            self._told[broker.number] = known
            broker.tell(rm.LivingBrokers(CLUSTER, broker.number, broker.epoch, living))
        if not image.is_current(broker.number, broker.epoch):
            return
        for at in sorted(image.places.get(broker.number, ())):
            word, page = image.assignment(at), at[1]
            if broker.words.get(page) == word:
                continue
            topic = self.topics[page]
            is_new = page not in broker.words
            broker.open(page, topic)
            broker.words[page] = word
            folder = str(broker.folder / f"topic-{page}")
            is_synced = topic.settings.durability == "fsync"
            broker.tell(rm.Assign(page, TOPIC, page, f"t-{page}", folder, is_synced, word))
            if is_new:
                broker.tell(rm.Opened(page))

    def _run(self) -> None:
        beat_at = 0.0
        while not self._stop.wait(PUMP):
            with self.lock:
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + HEARTBEAT
                    for broker in self.brokers.values():
                        if broker.is_up and broker.epoch:
                            self._beat(broker)
                    self._decide(self.controller.tick(now))
                for broker in self.brokers.values():
                    for report in broker.reports():
                        self._take(broker, report)

    def _take(self, broker: Broker, report: rm.Report) -> None:
        if isinstance(report, rm.Lives):
            broker.counts = report.counts
        elif isinstance(report, rm.ChangeIsr):
            self.changes += 1
            answer = self._decide(
                self.controller.change_isr((report.topic_id, report.partition), report.change)
            )
            broker.tell(rm.IsrAnswer(report.page, report.change, answer))
        elif isinstance(report, rm.Leaderless):
            self.ends.append((broker.number, report.end))
            place = report.topic_id, report.partition
            ends = [(place, report.end)]
            self._decide(self.controller.log_ends(broker.number, broker.epoch, ends))

    def through(self, proxy: Proxy, follower: int) -> None:
        """That follower reaches the proxy's target by the proxy, from now on."""
        with self.lock:
            self.urls[follower, proxy.target.number] = proxy.url
            self._spread()

    # --- topics ---
    def topic(
        self, partitions: int = 1, factor: int = 3, min_insync: int = 2, durability: str = "os",
        **settings: Any,
    ) -> None:  # fmt: skip
        for page in range(partitions):
            self.topics[page] = World.Topic(ms.TopicSettings(durability=durability, **settings))
        with self.lock:
            self._decide(
                self.controller.create_topic(
                    "t", TOPIC, partitions, factor, min_insync, b"",
                    is_synced=durability == "fsync",
                )
            )  # fmt: skip

    def partition(self, page: int = 0) -> Any:
        with self.lock:
            return self.controller.image.partitions[TOPIC, page]

    def leader(self, page: int = 0, *, but: int | None = None) -> Broker:
        """Who leads, once it does so for its writer too."""

        def found() -> Broker | None:
            it = self.partition(page)
            if it.leader in (None, but):
                return None
            broker = self.brokers[it.leader]
            state = broker.page(page)
            leads = state.status == lo.STATUS_ONLINE and state.leader_epoch == it.leader_epoch
            return broker if broker.is_up and page in broker.opened and leads else None

        return eventually(found, "somebody leads")

    def elect(self, page: int, broker: int) -> None:
        """Have that one lead: all others leave the ISR's front by a reassignment's order."""
        with self.lock:
            it = self.controller.image.partitions[TOPIC, page]
            rest = tuple(each for each in it.replicas if each != broker)
            self._decide(self.controller.reassign([(TOPIC, page)], (broker, *rest)))
            self._decide(self.controller.elect([(TOPIC, page)]))

    def wait_committed(self, offset: int, page: int = 0, *brokers: Broker) -> None:
        """Until these show that high watermark, by default all that are up and have a replica."""
        those = brokers or tuple(
            self.brokers[n] for n in self.partition(page).replicas if self.brokers[n].is_up
        )
        eventually(
            lambda: all(each.page(page).high_watermark >= offset for each in those),
            f"offset {offset} is committed everywhere",
        )

    def wait_isr(self, *members: int, page: int = 0) -> None:
        eventually(
            lambda: sorted(self.partition(page).isr) == sorted(members), f"the ISR is {members}"
        )

    def check_equal(self, page: int = 0) -> None:
        """All replicas that are up have the same log, as soon as what still comes has come."""
        those = [self.brokers[n] for n in self.partition(page).replicas]

        def differences() -> dict[int, object]:
            logs = {each.number: each.batches(page) for each in those if each.is_up}
            first = next(iter(logs.values()))
            return {
                n: (len(log), len(first), [(a[:2], b[:2]) for a, b in zip(log, first, strict=False)
                                           if a != b][:3])
                for n, log in logs.items() if log != first
            }  # fmt: skip

        with contextlib.suppress(AssertionError):
            eventually(lambda: not differences(), "all replicas are the same")
        assert not differences()

    def close(self) -> None:
        self._stop.set()
        self._pump.join(45)
        for broker in self.brokers.values():
            if broker.is_up:
                broker.kill()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Frames = list[bytes]


class Proxy:
    """Stands between a follower and a broker, and may do anything to what it passes on. `out` and
    `back` take a message and say what goes on instead of it."""

    def __init__(self, target: Broker) -> None:
        self.target = target
        self.out: Callable[[Frames], list[Frames]] = lambda frames: [frames]
        self.back: Callable[[Frames], list[Frames]] = lambda frames: [frames]
        self.passed = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind("tcp://127.0.0.1:0")
        self.url = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._dealers: dict[bytes, zmq.Socket[bytes]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(20))
            if self._router in ready:
                identity, *frames = self._router.recv_multipart()
                dealer = self._dealers.get(identity)
                if dealer is None:
                    dealer = self._dealers[identity] = self._context.socket(zmq.DEALER)
                    dealer.setsockopt(zmq.LINGER, 0)
                    dealer.connect(self.target.url)
                    poller.register(dealer, zmq.POLLIN)
                for message in self.out(frames):
                    dealer.send_multipart(message)
            for identity, dealer in self._dealers.items():
                if dealer in ready:
                    self.passed += 1
                    for message in self.back(dealer.recv_multipart()):
                        self._router.send_multipart([identity, *message])
        for each in (self._router, *self._dealers.values()):
            each.close(0)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(45)
        self._context.term()


def _table(size: int) -> Region:
    fd, region = memory(size)
    os.close(fd)
    return region


def _second(bell: Doorbell) -> Doorbell:
    return Doorbell.from_fd(os.dup(bell.fileno()))


def _forward(old: Doorbell, new: Doorbell) -> None:
    with contextlib.suppress(Exception):
        while True:
            if old.wait(0.5):
                new.ring()
