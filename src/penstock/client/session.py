"""One endpoint's attachment to a node on this host: the socket, the shared tables, the doorbell.

Owns descriptors and mappings that came with the attachment and gives them back on `close`. Knows
nothing of records. A session is never repaired: when its node goes away a new one is made
(`resume` names the producer id to keep) and the old one is closed.

Calls that wait exist in two forms. `attach` and `request` block; `attaching` and `requesting` let
the caller wait (see `penstock.ipc.waits`).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from penstock.client.backoff import Retries
from penstock.client.remote.address import Place, RemoteAddress
from penstock.client.validation import check_text
from penstock.core import errors as er
from penstock.ipc import clients as client_table
from penstock.ipc import layout as lo
from penstock.ipc import liveness, paths
from penstock.ipc import messages as ms
from penstock.ipc import state as state_table
from penstock.ipc.channel import SEND_TIMEOUT, Channel, close_fds, connecting
from penstock.ipc.clients import ClientSlot
from penstock.ipc.doorbell import Doorbell
from penstock.ipc.lane import LaneSender
from penstock.ipc.ownership import LOCK_FILE
from penstock.ipc.shm import Region
from penstock.ipc.state import StatePage
from penstock.ipc.waits import Wait, Waits, run

if TYPE_CHECKING:
    from penstock.client.remote.cursors import Fetcher

Reply = TypeVar("Reply", bound=msgspec.Struct)

RETRY_FIRST: Final = 0.02
RETRY_LAST: Final = 1.0
CONNECT_WITHIN: Final = 5.0
"""Seconds that a node has for its welcome, if nobody says otherwise."""
LISTEN_WITHIN: Final = 0.8
"""Seconds, of these, after which a place where nothing listens and no node is starting has none."""
_PURPOSES: Final[dict[int, Literal["read", "write"]]] = {
    lo.KIND_PRODUCER: "write", lo.KIND_CONSUMER: "read",
}  # fmt: skip
"""Purpose of a topic look-up, by the kind of client."""


def default_url() -> str:
    """Where `connect()` without a URL goes: to `$PENSTOCK_URL`, else to this user's own node."""
    return os.environ.get("PENSTOCK_URL") or "shm://"


def place_of(url: str, keys: str | os.PathLike[str] | None = None) -> Place:
    """Returns the place to attach to at a URL; `RemoteAddress.of_url` explains `keys`."""
    check_text("url", url)
    target = paths.parse_url(url)
    if target.scheme == "tcp":
        return RemoteAddress.of_url(target.hosts, keys)
    if keys is not None:
        raise er.ConfigError(f"keys= are for tcp://HOST:PORT, and not for {url!r}")
    return target.attach_socket()


class Session:
    """An attachment. Not thread-safe: its endpoint serialises the calls."""

    def __init__(
        self,
        socket: Place,
        channel: Channel,
        welcome: ms.Welcome,
        fds: list[int],
        far: Fetcher | None = None,
        *,
        kind: int = lo.KIND_ADMIN,
    ) -> None:
        self.socket = socket
        self._kind = kind
        self.far = far
        self._channel = channel
        self.welcome = welcome
        self.node_uuid = welcome.node_uuid
        self.data_folder = Path(welcome.data_folder)
        self.writers = welcome.writers
        self.producer_id = welcome.producer_id
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(close_fds, fds)
            self.state = Region.of_fd(fds.pop(0), writable=False)
            on_failure.callback(self.state.close)
            self.clients = Region.of_fd(fds.pop(0))
            on_failure.callback(self.clients.close)
            if not state_table.check_table(self.state, self.node_uuid):
                raise er.AttachRefusedError(f"the node at {socket} handed out a broken state table")
            if not client_table.check_table(self.clients):
                raise er.AttachRefusedError(
                    f"the node at {socket} handed out a broken client table"
                )
            try:
                second = os.dup(fds[0])
            except OSError as error:
                raise liveness.descriptor_limit_error("attaching to a node") from error
            self.caller_bell = Doorbell.from_fd(second)  # a poll object serves one thread
            on_failure.callback(self.caller_bell.close)
            if len(fds) != 1 + len(welcome.lanes):
                raise er.AttachRefusedError(
                    f"the node at {socket} sent {len(fds)} doorbells for {len(welcome.lanes)} lanes"
                )
            self.doorbell = Doorbell.from_fd(fds.pop(0))
            self.resumed = {lane.name: Doorbell.from_fd(fds.pop(0)) for lane in welcome.lanes}
            on_failure.pop_all()
        self.slot = ClientSlot(self.clients, welcome.slot) if welcome.slot >= 0 else None
        self._kept: Any = None  # the answer to the last of them, where nobody asked for it yet
        self._eof = select.poll()
        self._eof.register(channel.fileno(), select.POLLIN)

    @property
    def is_clustered(self) -> bool:
        """Whether it is to a cluster, and not to a node that is alone."""
        return bool(self.welcome.remote)

    @classmethod
    def attach(
        cls,
        socket: Place,
        kind: int,
        *,
        client_id: str,
        timeout: float | None,
        resume: int | None = None,
        remote: ms.RemotePeer | None = None,
    ) -> Session:
        """Connects and says hello, retrying within `timeout` seconds while no node listens. None:
        5 s, but less than one where nothing listens and no node is starting.

        Raises `NotConnectedError` when none came, `AttachRefusedError` (or what the node named)
        when it refused.
        """
        return run(
            cls.attaching(
                socket, kind, client_id=client_id, timeout=timeout, resume=resume, remote=remote
            )
        )

    @classmethod
    def attaching(
        cls,
        socket: Place,
        kind: int,
        *,
        client_id: str,
        timeout: float | None,
        resume: int | None = None,
        remote: ms.RemotePeer | None = None,
    ) -> Waits[Session]:
        """`attach`, with the waiting left to another one. `remote`: the gateway attaches for that
        client."""
        begun = time.monotonic()
        deadline = begun + (CONNECT_WITHIN if timeout is None else timeout)
        retries = Retries(RETRY_FIRST, RETRY_LAST)
        start_time = liveness.start_time(os.getpid())
        if start_time is None:
            raise er.AttachRefusedError(
                "/proc is not readable, so nobody can tell whether this process lives: use tcp"
            )
        hello = ms.Hello(ms.PROTOCOL_VERSION, kind, start_time, client_id, resume, remote)
        while True:
            left = deadline - time.monotonic()
            try:
                return (yield from cls._once(socket, hello, max(left, 0.05)))
            except er.NotConnectedError:
                delay = retries.next()
                if left - delay <= 0:
                    raise
                if timeout is None:
                    delay = min(delay, LISTEN_WITHIN / 4)
                    if time.monotonic() + delay - begun > LISTEN_WITHIN and _has_no_node(socket):
                        raise
            yield Wait(delay)

    @classmethod
    def _once(cls, socket: Place, hello: ms.Hello, timeout: float) -> Waits[Session]:
        link = None
        if isinstance(socket, RemoteAddress):
            link = socket.link()
            end = link.socket
        else:
            end = yield from connecting(socket, timeout)
        channel = Channel(end, inbound=ms.NodeMessage)
        try:
            yield from channel.sending(hello)
            received = yield from channel.receiving(timeout)
        except er.PenstockTimeout as error:
            channel.close()
            if isinstance(socket, RemoteAddress):
                raise socket.silent() from error
            raise
        except BaseException:
            channel.close()
            raise
        if received is None:
            channel.close()
            raise er.NotConnectedError(
                f"the node at {socket} hung up before it answered; is it shutting down?"
            )
        reply, fds = received
        if isinstance(reply, ms.Welcome) and len(fds) >= 3:
            try:
                far = None if link is None else link.far
                return cls(socket, channel, reply, fds, far, kind=hello.kind)
            except BaseException:
                channel.close()
                raise
        channel.close()
        close_fds(fds)
        raise refusal(reply, socket)

    def request(self, message: msgspec.Struct, expect: type[Reply], timeout: float) -> Reply:
        """Asks the node; raises what a `Refused` names, `PenstockTimeout`, `NotConnectedError`."""
        return run(self.requesting(message, expect, timeout))

    def requesting(
        self, message: msgspec.Struct, expect: type[Reply], timeout: float
    ) -> Waits[Reply]:
        """`request`, with the waiting left to another one."""
        reply, fds = yield from self.asking(message, timeout)
        close_fds(fds)
        if not isinstance(reply, expect):
            raise refusal(reply, self.socket)
        return reply

    def asking(self, message: msgspec.Struct, timeout: float) -> Waits[tuple[Any, list[int]]]:
        """Whatever the node answers, a `Refused` too, and descriptors that are the caller's."""
        deadline = time.monotonic() + timeout
        self._kept = None
        try:
            yield from self._channel.sending(message, timeout=timeout)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise er.NotConnectedError(f"the node at {self.socket} is gone: {error}") from error
        return (yield from self._receiving(_in_words(message), deadline, timeout))

    @property
    def _owed(self) -> int:
        """Answers that have not come yet: each message gets one, also where the request that sent
        it was given up or interrupted."""
        return self._channel.sent - self._channel.taken

    def _receiving(
        self, what: str, deadline: float, timeout: float
    ) -> Waits[tuple[Any, list[int]]]:
        """The answer to the last request."""
        try:
            while True:
                left = max(0.0, deadline - time.monotonic())
                received = yield from self._channel.receiving(left)
                if received is None:
                    raise er.NotConnectedError(f"the node at {self.socket} hung up")
                if not self._owed:
                    return received
                close_fds(received[1])  # the late answer to a request that timed out
        except (BrokenPipeError, ConnectionResetError) as error:
            raise er.NotConnectedError(f"the node at {self.socket} is gone: {error}") from error
        except TimeoutError as error:
            why = self.far.waits_for if self.far is not None else ""
            raise er.PenstockTimeout(
                f"the node at {self.socket} did not answer {what} within {timeout:.1f} s"
                + (f": {why}" if why else "")
            ) from error

    def post(self, message: msgspec.Struct) -> int:
        """Sends a request without a wait; returns a ticket by which `collecting` gets the answer.

        Raises `BlockingIOError` where it would have to wait, and `NotConnectedError`."""
        self._kept = None
        self._channel.send_nowait(message)
        return self._channel.sent

    @property
    def next_ticket(self) -> int:
        """Ticket that `post` returns if it is called now."""
        return self._channel.sent + 1

    def collecting(self, ticket: int, expect: type[Reply], timeout: float) -> Waits[Reply | None]:
        """The answer to what was posted; None where another request was made since, before whose
        answer this one went by. Raises as `requesting` does."""
        if ticket != self._channel.sent or not (self._owed or self._kept is not None):
            return None
        reply, self._kept = self._kept, None
        if reply is None:
            deadline = time.monotonic() + timeout
            reply, fds = yield from self._receiving("what was posted", deadline, timeout)
            close_fds(fds)
        if not isinstance(reply, expect):
            raise refusal(reply, self.socket)
        return reply

    def open_lane(self, writer: int, timeout: float) -> tuple[LaneSender, Doorbell]:
        """A lane to one writer process, with the doorbell that wakes it."""
        return run(self.opening_lane(writer, timeout))

    def opening_lane(self, writer: int, timeout: float) -> Waits[tuple[LaneSender, Doorbell]]:
        """`open_lane`, with the waiting left to another one."""
        reply, fds = yield from self.asking(ms.OpenLane(writer), timeout)
        if not isinstance(reply, ms.LaneOpened) or len(fds) != 2:
            close_fds(fds)
            raise refusal(reply, self.socket)
        doorbell = Doorbell.from_fd(fds[1])
        try:
            region = Region.of_fd(fds[0])
        except BaseException:
            doorbell.close()
            raise
        try:
            return LaneSender(region, reply.name), doorbell
        except BaseException:
            region.close()
            doorbell.close()
            raise

    def find_topic(self, name: str, timeout: float) -> ms.TopicInfo:
        return run(self.finding_topic(name, timeout))

    def finding_topic(self, name: str, timeout: float) -> Waits[ms.TopicInfo]:
        """`find_topic`, with the waiting left to another one."""
        message = ms.FindTopic(as_topic(name), _PURPOSES.get(self._kind, "describe"))
        return (yield from self.requesting(message, ms.TopicFound, timeout)).topic

    def page(self, index: int) -> StatePage:
        return StatePage(self.state, index)

    def fileno(self) -> int:
        """Readable when the node has hung up or says good-bye."""
        return self._channel.fileno()

    def farewell(self) -> str | None:
        """Returns why the node ended this session, or None while it lasts. Never blocks."""
        if not self._eof.poll(0):
            return None
        was_owed = self._owed > 0
        try:
            received = self._channel.recv(0.0)
        except (OSError, er.PenstockError) as error:
            return str(error) or "the connection broke"
        if received is None:
            return "the node is gone"
        reply, fds = received
        close_fds(fds)
        if was_owed:
            self._kept = None if self._owed else reply
            return None
        return reply.message if isinstance(reply, ms.Refused) else f"unexpected {reply!r}"

    def close(self, *, polite: bool = True, patience: float = SEND_TIMEOUT) -> None:
        """Hangs up and unmaps. `polite=False` in a forked child, which must not speak. `patience`:
        seconds for which a node that reads nothing is waited for."""
        if polite:
            # Without a node there is nobody left who would have to forget this client.
            with contextlib.suppress(OSError, er.PenstockError):
                self._channel.send(ms.Bye(), timeout=patience)
        self._channel.close()
        self.doorbell.close()
        self.caller_bell.close()
        for doorbell in self.resumed.values():
            doorbell.close()
        self.resumed = {}
        self.slot = None
        self.clients.close()
        self.state.close()


def as_topic(name: object) -> str:
    """A topic's name as it is. TypeError, before the node is asked, for anything else."""
    if isinstance(name, str):
        return name
    raise TypeError(f"a topic's name is str, not {type(name).__name__}: {name!r}")


def refusal(reply: object, socket: Place) -> er.PenstockError:
    """The exception that a node's answer asks for."""
    if isinstance(reply, ms.Refused):
        return er.named(reply.error, reply.message)
    return er.PenstockError(
        f"the node at {socket} answered {type(reply).__name__}, which does not belong here: "
        "run the same Penstock version in the node and its clients"
    )


def _has_no_node(place: Place) -> bool:
    """Whether nothing listens there, and no node that is starting holds its data folder."""
    if isinstance(place, RemoteAddress):
        return not place.is_anybody_there
    folder = paths.folder_served_at(place)
    return folder is None or not liveness.is_locked(folder / LOCK_FILE)


def _in_words(request: msgspec.Struct) -> str:
    """`FindTopic` as "find topic"."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(request).__name__).lower()
