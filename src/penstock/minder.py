"""The minder of a producer: who sleeps, who wakes, and who looks after what falls due.

One background thread seals lingering boxes, takes in answers, fails what is overdue and finds the
node again when it went away. A caller that waits takes over: it sleeps on the doorbell itself, so
that an answer reaches it without a detour through another thread.

The lock is the producer's; `wait`, `reap`, `expect` and `nudge` are called with it held.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.core import errors as er
from penstock.delivery import Box
from penstock.ipc import layout as lo
from penstock.ipc.doorbell import Backoff, Doorbell, fence
from penstock.ipc.messages import TopicInfo
from penstock.outbox import Outbox
from penstock.retrying import Retries
from penstock.routes import LaneLink
from penstock.session import Session

if TYPE_CHECKING:
    from penstock.producer import Producer

logger = logging.getLogger("penstock.producer")

EXPIRE_EVERY: Final = 0.1
WAIT_MAX: Final = 0.5
CALLER_WAIT_MAX: Final = 0.1
BLIND: Final = 0.005
"""Seconds the thread sleeps without a ticket while callers post: rings would only make it compete
with them for the interpreter (measured 100 ns a record)."""


class Minder:
    """See the module. One per producer (and per forked child of it)."""

    def __init__(
        self, producer: Producer, lock: threading.Lock, outbox: Outbox, retries: Retries
    ) -> None:
        self._producer = producer
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._outbox = outbox
        self._session: Session | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._leading = False
        self._dozing = 0
        self._ticket = time.monotonic_ns()  # never one that a predecessor used
        self._asleep_until = 0.0
        self._napping = False  # on the condition, because a caller has the doorbell
        self._busy = False
        self._blind = False
        self._watched: list[tuple[Callable[[], bool], Callable[[], object]]] = []
        self._next_expiry = 0.0
        self._retry_at = 0.0
        self._retries = retries
        self.reconnects = 0

    def start(self, session: Session) -> None:
        self._session = session
        self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread (lock not held) and send waiting callers away."""
        with self._lock:
            self._stopping = True
            self.nudge()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def nudge(self) -> None:
        """Wake the thread: there is something for it to do."""
        if self._session is not None:
            self._session.doorbell.ring()

    def expect(self, due: float) -> None:
        """Something falls due at `due` (monotonic seconds): do not sleep past it."""
        if due < self._asleep_until:
            self._asleep_until = due
            if self._napping:
                self._changed.notify_all()
            else:
                self.nudge()

    def reap(self) -> bool:
        moved = self._outbox.reap()
        if moved:
            self._changed.notify_all()
            self._tell()
            self._release()
        return moved

    def gathered(self, box: Box) -> None:
        """A record that is not to linger has joined others, which leave at once where little is in
        flight, and else with the next answer: so there are as many batches as can be answered, and
        not as many as there are records."""
        if self._outbox.has_answers():
            self.reap()
        self._release()
        if not box.sealed:
            self.attend()
            self.expect(box.linger_until)

    def _release(self) -> None:
        if self._producer.boxes.gather and self._outbox.is_eager:
            self._producer.seal_gathered()

    def watch(self, condition: Callable[[], bool], callback: Callable[[], object]) -> None:
        """Call `callback` once, soon after `condition()` came true, with the lock held: it must
        not call the producer. Who waits here needs no thread."""
        self._watched.append((condition, callback))
        self.attend()
        self._tell()

    def unwatch(self, callback: Callable[[], object]) -> None:
        self._watched = [watch for watch in self._watched if watch[1] is not callback]

    def _tell(self) -> None:
        if self._watched:
            due = [watch for watch in self._watched if watch[0]()]
            self._watched = [watch for watch in self._watched if watch not in due]
            for _, callback in due:
                callback()

    def attend(self) -> None:
        """Somebody waits without a thread of its own: do not doze blindly."""
        self._busy = False
        if self._blind:
            self._blind = False
            self.nudge()

    def posted(self) -> None:
        """Batches have left: look for answers on the way, and let the thread doze blindly."""
        self._busy = True
        self.reap()

    # --- callers ---------------------------------------------------------------------------------
    def wait(self, predicate: Callable[[], bool], timeout: float | None) -> bool:
        """Mind the outbox until `predicate()`; False if `timeout` seconds ran out first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        is_own = self._thread is threading.current_thread()
        while True:
            self.reap()
            if predicate():
                return True
            if self._stopping:
                raise er.ClosedError("the producer was closed while a call waited on it")
            now = time.monotonic()
            left = WAIT_MAX if deadline is None else deadline - now
            if left <= 0:
                return False
            if is_own:
                left = self._stand_in(now, left)
            if self._leading or self._session is None or self._outbox.lost is not None:
                self._changed.wait(min(left, WAIT_MAX))
                continue
            self._leading = True
            try:
                self._doze(self._session.caller_bell, min(left, CALLER_WAIT_MAX))
            finally:
                self._leading = False
                self._changed.notify_all()
            now = time.monotonic()
            self._expire(now)
            if not self._outbox.has_answers():
                self._look_for_node(now)
                if self._outbox.lost is not None:
                    self.nudge()  # it was the thread's ring

    def _stand_in(self, now: float, bound: float) -> float:
        """A callback waits, on the very thread that else does this. How long it may sleep."""
        try:
            if self._producer.seal_open(now):
                return 0.0
        except Exception:  # of records that have nothing to do with this call
            logger.exception("the producer's thread goes on after an error")
        self._expire(now)
        self._tell()
        self._look_for_node(now)
        if self._outbox.lost is not None:
            self._lock.release()
            try:
                self._return()
            finally:
                self._lock.acquire()
            bound = min(bound, max(self._retry_at - time.monotonic(), 0.001))
        return self._nap(now, min(bound, CALLER_WAIT_MAX))

    def find_topic(self, topic: str, timeout: float) -> TopicInfo:
        """What the node says of a topic, within `timeout` seconds also across its restart."""
        outbox, deadline = self._outbox, time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if outbox.lost and not self.wait(lambda: outbox.lost is None, left):
                raise er.NotConnectedError(
                    f"cannot look up topic {topic!r}: {outbox.lost}; no node came back at "
                    f"{self._producer.socket} within {timeout} s"
                )
            assert self._session is not None
            try:
                return self._session.find_topic(topic, max(left, 0.05))
            except er.NotConnectedError as error:  # it may be back in time
                outbox.lost = str(error)
                self.nudge()

    def open_lane(self, writer: int) -> LaneLink | None:
        """The lane to a writer, opened on first use; None while there is no node to ask."""
        if self._session is None or self._outbox.lost is not None:
            return None
        try:
            flags = lo.FRAME_SYNC if self._outbox.level == "fsynced" else 0
            if self._outbox.committed and self._session.is_clustered:
                flags |= lo.FRAME_COMMITTED
            link = LaneLink(*self._session.open_lane(writer, self._producer.timeout), flags)
        except er.NotConnectedError as error:
            self._outbox.lost = str(error)
            return None
        self._outbox.links[writer] = link
        return link

    def _doze(self, bell: Doorbell, bound: float, *, blind: bool = False) -> None:
        """Sleep on a doorbell by the protocol of rule 13; gives the lock up meanwhile.

        The thread and one caller may doze at once; who wakes first publishes a fresh ticket for the
        one who still sleeps. `blind`: writers need not ring, callers are busy posting and take the
        answers in themselves.
        """
        if not blind:
            self._publish(sleeping=True)
            fence()
        if blind or not self._outbox.has_answers():
            self._dozing += 1
            self._lock.release()
            try:
                bell.wait(bound)
            except er.ClosedError:
                pass  # the attachment was replaced meanwhile
            finally:
                self._lock.acquire()
                self._dozing -= 1
        self._publish(sleeping=self._dozing > 0)
        if self._dozing:
            fence()  # who woke looks for answers next, for the sleeper too

    def _publish(self, *, sleeping: bool) -> None:
        self._ticket += 1
        ticket = self._ticket if sleeping else 0
        for link in self._outbox.links.values():
            link.sender.publish_sleeping(ticket)

    def _expire(self, now: float) -> None:
        if now >= self._next_expiry:
            self._next_expiry = now + EXPIRE_EVERY
            self._outbox.expire(now)

    # --- the thread ------------------------------------------------------------------------------
    def _run(self) -> None:
        backoff = Backoff()
        while True:
            with self._lock:
                if self._stopping:
                    return
                try:
                    moved = self._mind(backoff)
                except Exception:  # nobody else would notice, and deliveries depend on this thread
                    logger.exception("the producer's thread goes on after an error")
                    self._expire(time.monotonic())
                    moved = False
                    self._changed.wait(backoff.bound())
            if moved:
                backoff.reset()
                if self._producer.callbacks.run():
                    self._all_told()
            self._return()

    def _all_told(self) -> None:
        """Callbacks have run, for which a caller may have waited."""
        with self._lock:
            self._changed.notify_all()
            if self._leading and self._session is not None:
                self._session.caller_bell.ring()

    def _return(self) -> None:
        """Look for a node that went away, if it is time for that (lock not held)."""
        due = self._outbox.lost is not None and time.monotonic() >= self._retry_at
        if due and not self._reattach():
            self._retry_at = time.monotonic() + self._retries.next()

    def _mind(self, backoff: Backoff) -> bool:
        """One round of duties, then sleep if there were none. True if there were."""
        producer, outbox = self._producer, self._outbox
        now = time.monotonic()
        moved = self.reap()
        moved = producer.seal_open(now) or moved
        self._expire(now)
        self._tell()
        self._look_for_node(now)
        away = outbox.lost is not None
        if away and now >= self._retry_at:
            pass  # that comes first
        elif self._leading:
            if moved:
                self.nudge()  # this thread may have taken a ring that was meant for the caller
            bound = self._nap(now, self._retry_at - now if away else WAIT_MAX)
            self._asleep_until, self._napping = now + bound, True
            self._changed.wait(bound)
            self._asleep_until, self._napping = 0.0, False
        elif not moved and not producer.callbacks:
            bound = self._nap(now, backoff.bound())
            if away:
                bound = min(bound, max(self._retry_at - now, 0.001))
            assert self._session is not None
            busy, self._busy = self._busy and not producer.boxes.gather, False
            self._blind = busy
            if busy:
                bound = min(bound, BLIND)
            self._asleep_until = now + bound
            self._doze(self._session.doorbell, bound, blind=busy)
            self._asleep_until, self._blind = 0.0, False
        return moved or bool(producer.callbacks)

    def _nap(self, now: float, bound: float) -> float:
        due = self._producer.boxes.linger_until()
        return bound if due is None else max(0.0, min(bound, due - now))

    def _look_for_node(self, now: float) -> None:
        if self._outbox.lost is None and self._session is not None:
            self._outbox.lost = self._session.farewell()
            if self._outbox.lost is not None:
                logger.warning("lost the node at %s: %s", self._producer.socket, self._outbox.lost)
                self._retries.reset()
                self._retry_at = now

    def _attach(self, resume: int | None) -> Session:
        producer = self._producer
        return Session.attach(
            producer.socket,
            lo.KIND_PRODUCER,
            client_id=producer.client_id,
            timeout=0.5,
            resume=resume,
        )

    def _reattach(self) -> bool:
        """Find the node that came back, keep producer id and lanes (rule 5)."""
        producer, old = self._producer, self._session
        assert old is not None
        try:
            try:
                session = self._attach(old.producer_id)
            except er.AttachRefusedError:
                session = self._attach(None)  # another data folder, which does not know the id
        except (er.PenstockError, OSError) as error:
            logger.info("no node yet at %s: %s", producer.socket, error)
            return False
        with self._lock:
            if self._stopping:
                session.close()
                return True
            same = session.node_uuid == old.node_uuid and session.producer_id == old.producer_id
            producer.adopt(session)
            self._session = session
            self.reconnects += 1
            self._outbox.resume(session, same=same)
            old.caller_bell.ring()  # a caller that sleeps on it is to sleep on the new one
            old.close(polite=False)
            self._changed.notify_all()
        logger.info("back at the node at %s", producer.socket)
        return True
