"""The attach server: connections of clients, one request at a time each, without ever waiting.

A connection that says nothing, says garbage or does not read its answers is dropped. An answer that
takes time (a topic being created) holds up only its own connection: its next request stays unread
in the kernel. Owns sockets and their bounds. The service handles the requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.core.errors import AccessDeniedError, NotConnectedError, PenstockError
from penstock.ipc import messages as ms
from penstock.ipc.channel import Channel, PeerCredentials, close_fds, listen

logger = logging.getLogger("penstock.node")

REQUESTS_PER_WAKE: Final = 32
ACCEPTS_PER_WAKE: Final = 32
STRANGERS_MAX: Final = 128
"""Connections that have not said hello yet; more are dropped at once."""
REFUSED: Final = "%s of pid %d refused: %s"
ACCEPT_PAUSE: Final = 0.1
"""Seconds without accepting after it failed, so that the loop does not spin."""


class Reply(NamedTuple):
    """An answer with descriptors in their order; those in `given` are closed once it is sent."""

    message: ms.NodeMessage
    fds: Sequence[int] = ()
    given: Sequence[int] = ()


Answer = (
    Reply
    | Coroutine[Any, Any, "ms.NodeMessage | Reply"]
    | asyncio.Future[Any]  # of a message or a `Reply`
)


class Service(Protocol):
    """The handler of the sessions' requests."""

    def hello(self, session: AttachSession, peer: PeerCredentials, hello: ms.Hello) -> Reply: ...

    def request(self, session: AttachSession, message: ms.ClientMessage) -> Answer: ...

    def ended(self, session: AttachSession, *, goodbye: bool) -> None:
        """The connection is over: the client took its leave, or either side just hung up."""


class AttachSession:
    """One connection, from accept to close."""

    def __init__(self, server: AttachServer, sock: socket.socket, hello_timeout: float) -> None:
        self._server = server
        self._service = server.service
        self._loop = asyncio.get_running_loop()
        self._channel: Channel = Channel(sock, inbound=ms.ClientMessage)
        self._peer = self._channel.peer()
        self._task: asyncio.Future[Any] | None = None
        """The answer that is still worked on."""
        self._is_paused = False
        """Something came meanwhile, and stays unread until that is over."""
        self._is_known = False
        self.client: object | None = None
        """The service's own object for this client; set by `hello`."""
        self._timer = self._loop.call_later(
            hello_timeout, self._drop, f"it said no hello for {hello_timeout:g} s"
        )
        self._loop.add_reader(self._channel.fileno(), self._readable)

    @property
    def is_stranger(self) -> bool:
        return not self._is_known

    def check_user(self) -> bool:
        """Only processes of the node's own user are served (rule 28)."""
        if self._peer.uid == os.geteuid():
            return True
        self.refuse(
            "AttachRefusedError",
            f"this node serves uid {os.geteuid()}, not uid {self._peer.uid}: run the client as the "
            "node's user, or connect by tcp://",
        )
        return False

    # --- in ---
    def _readable(self) -> None:
        if self._task is not None:
            self._is_paused = True
            self._loop.remove_reader(self._channel.fileno())
            return
        for _ in range(REQUESTS_PER_WAKE):
            if self._channel.closed or self._task is not None:
                return
            try:
                received = self._channel.recv_nowait()
            except BlockingIOError:
                return
            except (PenstockError, OSError) as error:
                self._drop(str(error))
                return
            if received is None:
                self._close(goodbye=False)
                return
            message, fds = received
            close_fds(fds)
            self._take(message)

    def _take(self, message: ms.ClientMessage) -> None:
        if isinstance(message, ms.Bye):
            self._close(goodbye=True)
        elif isinstance(message, ms.Hello) == self._is_known:
            self._drop("it said hello twice" if self._is_known else "it did not say hello first")
        else:
            try:
                if isinstance(message, ms.Hello):
                    answer: Answer = self._service.hello(self, self._peer, message)
                    self._is_known = True
                    self._timer.cancel()
                else:
                    answer = self._service.request(self, message)
            except Exception as error:
                self._fail(message, error)
                return
            if isinstance(answer, Reply):
                self._reply(answer)
            else:
                if not isinstance(answer, asyncio.Future):
                    answer = self._loop.create_task(answer)
                self._task = answer
                answer.add_done_callback(partial(self._answered, message))

    def _answered(self, message: ms.ClientMessage, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return  # by `cancel`, which comes with the end
        self._task, error = None, answer.exception()
        if isinstance(error, Exception):
            self._fail(message, error)
        elif error is None:
            reply = answer.result()
            self._reply(reply if isinstance(reply, Reply) else Reply(reply))
        if self._is_paused and not self._channel.closed:
            self._is_paused = False
            self._loop.add_reader(self._channel.fileno(), self._readable)
            self._readable()

    # --- out ---
    def _fail(self, message: ms.ClientMessage, error: Exception) -> None:
        """Answer a request that cannot be served; a hello that cannot be is the end."""
        kind = type(message).__name__
        if isinstance(error, AccessDeniedError):  # told by the audit, which is bounded
            refused = ms.Refused(type(error).__name__, str(error)[:4000])
        elif isinstance(error, PenstockError):
            logger.info(
                REFUSED,
                kind,
                self._peer.pid,
                error,
                extra={"pid": self._peer.pid, "request": kind},
            )
            refused = ms.Refused(type(error).__name__, str(error)[:4000])
        else:
            logger.error(
                "%s of pid %d failed",
                kind,
                self._peer.pid,
                exc_info=error,
                extra={"pid": self._peer.pid, "request": kind, "reason": repr(error)},
            )
            refused = ms.Refused("PenstockError", f"the node failed at {kind}: {error!r:.1000}")
        self._server.refusals += 1
        self._reply(Reply(refused))
        if not self._is_known:
            self._close(goodbye=False)

    def _reply(self, reply: Reply) -> None:
        try:
            if not self._channel.closed:
                self._channel.send_nowait(reply.message, reply.fds)
        except BlockingIOError:
            self._drop("it does not read its answers")
        except NotConnectedError:
            pass  # reading tells the end
        except (PenstockError, OSError, msgspec.MsgspecError) as error:
            self._drop(f"it could not be answered: {error}")
        finally:
            close_fds(reply.given)

    def refuse(self, error: str, message: str) -> None:
        """Say why and hang up."""
        logger.info(
            "pid %d refused: %s",
            self._peer.pid,
            message,
            extra={"pid": self._peer.pid, "reason": message, "error": error},
        )
        self._server.refusals += 1
        self._reply(Reply(ms.Refused(error, message)))
        self.hang_up()

    # --- the end ---
    def _drop(self, reason: str) -> None:
        logger.warning(
            "connection of pid %d dropped: %s",
            self._peer.pid,
            reason,
            extra={"pid": self._peer.pid, "reason": reason},
        )
        self._server.drops += 1
        self._close(goodbye=False)

    def _close(self, *, goodbye: bool) -> None:
        if self.hang_up() and self._is_known:
            self._service.ended(self, goodbye=goodbye)

    def hang_up(self) -> bool:
        """Close the connection without telling the service. False when it was closed already."""
        if self._channel.closed:
            return False
        self._timer.cancel()
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._server.sessions.discard(self)
        return True

    def cancel(self) -> None:
        """Give up an answer that is still being worked on."""
        if self._task is not None:
            self._task.cancel()


class AttachServer:
    """Listening sockets and their sessions."""

    def __init__(self, service: Service, hello_timeout: float) -> None:
        self.service = service
        self._hello_timeout = hello_timeout
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[str, socket.socket] = {}
        self.sessions: set[AttachSession] = set()
        self.refusals = 0
        self.drops = 0

    def counts(self) -> dict[str, int]:
        """Returns the counts of refusals and of dropped connections."""
        return {"refusals": self.refusals, "drops": self.drops}

    def listen(self, path: str) -> None:
        """Takes an address. Connections wait in the kernel until `admit`."""
        self._listeners[path] = listen(path)

    def admit(self) -> None:
        for listener in self._listeners.values():
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_WAKE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:  # mostly that there are no more descriptors
                logger.error("no connection accepted for %g s: %s", ACCEPT_PAUSE, error)
                self._pause(listener)
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        if sum(session.is_stranger for session in self.sessions) >= STRANGERS_MAX:
            logger.warning("connection dropped: %d others said no hello yet", STRANGERS_MAX)
            self.drops += 1
            sock.close()
            return
        session = AttachSession(self, sock, self._hello_timeout)
        self.sessions.add(session)
        session.check_user()

    def _pause(self, listener: socket.socket) -> None:
        def resume() -> None:
            if listener.fileno() >= 0:
                self._loop.add_reader(listener.fileno(), self._accept, listener)

        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(ACCEPT_PAUSE, resume)

    def stop_accepting(self) -> None:
        for path, listener in self._listeners.items():
            self._loop.remove_reader(listener.fileno())
            os.unlink(path)  # while it still answers, so it is nobody else's
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        self.stop_accepting()
        for session in list(self.sessions):
            session.hang_up()
            session.cancel()
