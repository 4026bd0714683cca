"""The minder of a producer: who sleeps, who wakes, and who looks after what falls due.

One background thread seals lingering boxes, takes in answers, fails what is overdue and finds the
node again when it went away. A caller that waits takes over: it sleeps on the doorbell itself, so
that an answer reaches it without a detour through another thread.

The lock is the producer's (see `penstock.client.producer.books`): `reap`, `expect` and `nudge` are
called with it held, `wait` without it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.client import threads
from penstock.client.backoff import Retries
from penstock.client.producer.accumulator import Boxes
from penstock.client.producer.backpressure import Pressure
from penstock.client.producer.callbacks import Callbacks, Outcomes
from penstock.client.producer.delivery import AnyDelivery, Box, DoneCallback
from penstock.client.producer.sender import Sender
from penstock.client.producer.state import ProducerState
from penstock.client.remote.address import lost_level
from penstock.client.session import Session
from penstock.core import errors as er
from penstock.ipc.doorbell import Backoff, Doorbell, fence
from penstock.ipc.messages import TopicInfo

logger = logging.getLogger("penstock.producer")

EXPIRE_EVERY: Final = 0.1
WAIT_MAX: Final = 0.5
CALLER_WAIT_MAX: Final = 0.1
ATTACH_TIMEOUT: Final = 0.5
BLIND: Final = 0.005
"""Seconds the thread sleeps without a ticket while callers post. Rings would only make it compete
with them for the interpreter (measured 100 ns a record)."""


class Minder:
    """The producer's I/O thread and the waits of its callers. One per producer (and per forked
    child of it)."""

    def __init__(
        self,
        state: ProducerState,
        outcomes: Outcomes,
        sender: Sender,
        boxes: Boxes,
        pressure: Pressure,
    ) -> None:
        config = state.config
        self._state = state
        self._books = state.books
        self._lock = state.lock
        self._changed = threading.Condition(state.lock)  # for the thread alone
        self._sleepers: list[threading.Lock] = []  # callers that wait for somebody else to mind
        self._callbacks = outcomes.callbacks
        self._sender = sender
        self._boxes = boxes
        self._pressure = pressure
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._leader = 0  # the ident of the caller's thread that has the doorbell
        self._dozing = False
        self._ticket = time.monotonic_ns()  # never one that a predecessor used
        self._asleep_until = 0.0
        self._napping = False  # on the condition, because a caller has the doorbell
        self._busy = False
        self._blind = False
        self._watched: list[tuple[Callable[[], bool], Callable[[], object]]] = []
        self._next_expiry = 0.0
        self._retry_at = 0.0
        self._retries = Retries(config.retry_backoff, config.retry_backoff_max)
        self.reconnects = 0

    def start(self, session: Session) -> None:
        """Starts the thread on an attachment. After an interrupt it may be called again."""
        self._state.session = session  # first: an interrupt leaves none that nobody minds
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)
        threads.start(self._thread)
        self._adopt(session)

    def _adopt(self, session: Session) -> None:
        """Works with this attachment from now on (lock held, or nobody else there yet)."""
        self._state.adopt(session)
        self._pressure.publish(session)

    def stop(self) -> None:
        """Ends the thread (lock not held) and wakes waiting callers."""
        with self._lock:
            self._books.open()
            self._stopping = True
            self.nudge()
            self._wake()
            self._books.close()
        thread = self._thread
        if thread is None or thread.ident is None or thread is threading.current_thread():
            return
        thread.join(5.0)

    def wind_up(self) -> None:
        """Fails what is left (lock held) and sends no more. The thread calls it last, whatever
        happens to the caller that closes the producer."""
        left = er.ClosedError("the producer was closed before these records were acknowledged")
        self._boxes.drop(left, level=logging.WARNING)
        self._boxes.seen.clear()
        self._sender.leave(left)
        self._pressure.close()

    def nudge(self) -> None:
        """Wakes the thread: there is something for it to do."""
        self._state.nudge()

    def _wake(self) -> None:
        """Wakes every caller that sleeps without a doorbell, so that it looks again."""
        self._changed.notify_all()
        sleepers, self._sleepers = self._sleepers, []
        for sleeper in sleepers:
            sleeper.release()

    def expect(self, due: float) -> None:
        """Notes that something falls due at `due` (monotonic seconds): the thread does not sleep
        past it."""
        if due < self._asleep_until:
            self._asleep_until = due
            if self._napping:
                self._changed.notify_all()
            else:
                self.nudge()

    def reap(self) -> bool:
        moved = self._sender.reap()
        if moved:
            self._wake()
            self._tell()
            self._release()
        return moved

    def gathered(self, box: Box) -> None:
        """Sends a gathered record, at once where little is in flight, else with the next answer. So
        there are as many batches as can be answered, not as many as records."""
        if self._sender.has_answers():
            self.reap()
        self._release()
        if not box.sealed:
            self.attend()
            self.expect(box.linger_until)

    def _release(self) -> None:
        if self._boxes.gather and self._sender.is_eager and self._boxes.seal_gathered():
            self.posted()

    def seal_open(self, now: float | None) -> bool:
        """Sends boxes that have lingered long enough (all, if `now` is None). True if there was
        one."""
        has_left = self._boxes.seal_open(now)
        if has_left:
            self.posted()
        return has_left

    def watch(self, condition: Callable[[], bool], callback: Callable[[], object]) -> None:
        """Calls `callback` once, soon after `condition()` came true, with the lock held: it must
        not call the producer. A caller that waits here needs no thread."""
        self._watched.append((condition, callback))
        self.attend()
        self._tell()

    def unwatch(self, callback: Callable[[], object]) -> None:
        self._watched = [watch for watch in self._watched if watch[1] is not callback]

    def _tell(self) -> None:
        for watch in list(self._watched):
            condition, callback = watch
            if condition():
                callback()
                self._watched.remove(watch)

    def attend(self) -> None:
        """Notes a caller that waits without a thread of its own: the thread then sleeps with a
        ticket."""
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
        """Serves the sender until `predicate()`, called with the lock held, is true. Returns False
        if `timeout` seconds ran out first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        me = threading.get_ident()
        is_own = self._thread is threading.current_thread()
        try:
            while True:
                with self._lock:
                    self._books.open()
                    if self._leader == me:
                        self._stand_down()
                    self.reap()
                    is_over, left = predicate(), self._left(deadline)
                    if is_over or left <= 0:
                        self._books.close()
                        return is_over
                    if self._stopping:
                        self._books.close()
                        raise er.ClosedError("the producer was closed while a call waited on it")
                    if is_own:
                        left = self._stand_in(left)
                    sleep = self._lie_down(me, left)
                    self._books.close()
                if is_own and self._sender.lost is not None:
                    self._return()
                sleep()
        except BaseException:
            if self._leader == me:
                self._leader = 0
            raise

    def await_box(self, box: Box, ordinal: int | None, timeout: float | None) -> None:
        """Waits until a box (or the record's batch in it) is done."""
        if self._state.is_stale:
            raise er.ForkedClientError(
                "this delivery was made before fork(); its outcome belongs to the parent process"
            )

        def is_done() -> bool:
            return box.done if ordinal is None else box.is_done(ordinal)

        if not is_done() and not self.wait(is_done, timeout):
            raise er.PenstockTimeout(
                f"no acknowledgement for {box.topic!r} within {timeout} s{self._sender.why()}; "
                "the record is still on its way"
            )

    def call_when_done(self, delivery: AnyDelivery, box: Box, callback: DoneCallback) -> None:
        """Calls back once the outcome of a box is known; at once, where it is."""
        if self._state.is_stale:  # its lock is the parent's, too
            is_done = delivery.done()
        else:
            with self._lock:
                self._books.open()
                is_done = delivery.done()
                if not is_done:
                    self._callbacks.expect(delivery, box, callback)
                    self.attend()
                self._books.close()
        if is_done:
            Callbacks.call(delivery, callback)

    @staticmethod
    def _left(deadline: float | None) -> float:
        return WAIT_MAX if deadline is None else deadline - time.monotonic()

    def _lie_down(self, me: int, left: float) -> Callable[[], object]:
        """Returns how a caller sleeps: on the doorbell, or on a lock while another caller sleeps
        there."""
        session = self._state.session
        if self._leader or session is None or self._sender.lost is not None:
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            return partial(sleeper.acquire, True, min(left, WAIT_MAX))
        self._leader = me
        self._publish(sleeping=True)
        fence()
        if self._sender.has_answers():
            return _awake
        return partial(_sleep, session.caller_bell, min(left, CALLER_WAIT_MAX))

    def _stand_down(self) -> None:
        """Ends the sleep of a caller on the doorbell."""
        self._leader = 0
        self._publish(sleeping=self._dozing)
        if self._dozing:
            fence()  # who woke looks for answers next, for the sleeper too
        self._wake()
        now = time.monotonic()
        self._expire(now)
        if not self._sender.has_answers():
            self._look_for_node(now)
            if self._sender.lost is not None:
                self.nudge()  # it was the thread's ring

    def _stand_in(self, bound: float) -> float:
        """Does the thread's duties while a callback waits on it. Returns how long it may sleep."""
        now = time.monotonic()
        try:
            if self.seal_open(now):
                return 0.0
        except Exception:  # of records that have nothing to do with this call
            logger.exception("the producer's thread goes on after an error")
            self._books.mend()
        self._expire(now)
        self._tell()
        self._look_for_node(now)
        if self._sender.lost is not None:
            bound = min(bound, max(self._retry_at - time.monotonic(), 0.001))
        return self._nap(now, min(bound, CALLER_WAIT_MAX))

    def find_topic(self, topic: str, left: float) -> TopicInfo | None:
        """Asks the node about a topic, within so many seconds; None while there is no node."""
        if self._sender.lost is not None:
            return None
        session = self._state.session
        assert session is not None
        try:
            return session.find_topic(topic, max(left, 0.05))
        except er.NotConnectedError as error:  # it may be back in time
            self._sender.lost = str(error)
            self.nudge()
            return None

    def await_node(self, topic: str, timeout: float, left: float) -> None:
        """Waits until the node is back, to ask it about a topic (lock not held)."""
        sender = self._sender
        if not self.wait(lambda: sender.lost is None, left):
            raise er.NotConnectedError(
                f"cannot look up topic {topic!r}: {sender.lost}; no node came back at "
                f"{self._state.socket} within {timeout} s"
            )

    def _doze(self, bell: Doorbell, bound: float, *, blind: bool = False) -> None:
        """Puts the thread to sleep on a doorbell by the protocol of rule 13; gives the lock up
        meanwhile.

        The thread and one caller may sleep at once. The first to wake publishes a fresh ticket for
        the other. `blind`: writers need not ring, because callers are busy posting and read the
        answers themselves.
        """
        if not blind:
            self._publish(sleeping=True)
            fence()
        if blind or not self._sender.has_answers():
            self._dozing = True
            self._books.close()
            self._lock.release()
            try:
                _sleep(bell, bound)
            finally:
                self._lock.acquire()
                self._dozing = False
            self._books.open()
        self._publish(sleeping=bool(self._leader))
        if self._leader:
            fence()  # who woke looks for answers next, for the sleeper too

    def _pause(self, bound: float) -> None:
        """Puts the thread to sleep until it is woken; gives the lock up meanwhile."""
        self._books.close()
        self._changed.wait(bound)
        self._books.open()

    def _publish(self, *, sleeping: bool) -> None:
        self._ticket += 1
        ticket = self._ticket if sleeping else 0
        for link in self._sender.links.values():
            link.sender.publish_sleeping(ticket)

    def _expire(self, now: float) -> None:
        if now >= self._next_expiry:
            self._next_expiry = now + EXPIRE_EVERY
            self._sender.expire(now)

    # --- the thread ------------------------------------------------------------------------------
    def _run(self) -> None:
        backoff = Backoff()
        while True:
            with self._lock:
                try:
                    self._books.open()
                    if self._stopping:
                        self.wind_up()
                        self._books.close()
                        break
                    moved = self._mind(backoff)
                    self._books.close()
                except Exception:  # nobody else would notice, and deliveries depend on this thread
                    logger.exception("the producer's thread goes on after an error")
                    self._expire(time.monotonic())
                    moved = False
                    self._changed.wait(backoff.bound())
            if moved:
                backoff.reset()
                if self._callbacks.run():
                    self._all_told()
            self._return()
        self._callbacks.run()

    def _all_told(self) -> None:
        """Callbacks have run, for which a caller may have waited."""
        with self._lock:
            self._books.open()
            self._wake()
            if self._leader and self._state.session is not None:
                self._state.session.caller_bell.ring()
            self._books.close()

    def _return(self) -> None:
        """Looks for a node that went away, if it is time for that (lock not held)."""
        due = self._sender.lost is not None and time.monotonic() >= self._retry_at
        if due and not self._reattach():
            self._retry_at = time.monotonic() + self._retries.next()

    def _mind(self, backoff: Backoff) -> bool:
        """Does one round of duties, then sleeps if there were none. Returns whether there
        were any."""
        sender, callbacks = self._sender, self._callbacks
        now = time.monotonic()
        moved = self.reap()
        moved = self.seal_open(now) or moved
        self._expire(now)
        self._tell()
        self._look_for_node(now)
        away = sender.lost is not None
        if away and now >= self._retry_at:
            pass  # that comes first
        elif self._leader:
            if moved:
                self.nudge()  # this thread may have taken a ring that was meant for the caller
            bound = self._nap(now, self._retry_at - now if away else WAIT_MAX)
            self._asleep_until, self._napping = now + bound, True
            self._pause(bound)
            self._asleep_until, self._napping = 0.0, False
        elif not moved and not callbacks:
            bound = self._nap(now, backoff.bound())
            if away:
                bound = min(bound, max(self._retry_at - now, 0.001))
            session = self._state.session
            assert session is not None
            busy, self._busy = self._busy and not self._boxes.gather, False
            self._blind = busy
            if busy:
                bound = min(bound, BLIND)
            self._asleep_until = now + bound
            self._doze(session.doorbell, bound, blind=busy)
            self._asleep_until, self._blind = 0.0, False
        return moved or bool(callbacks)

    def _nap(self, now: float, bound: float) -> float:
        due = self._boxes.linger_until()
        return bound if due is None else max(0.0, min(bound, due - now))

    def _look_for_node(self, now: float) -> None:
        if self._sender.lost is None and self._state.session is not None:
            self._sender.lost = self._state.session.farewell()
            if self._sender.lost is not None:
                place = self._state.socket
                logger.log(lost_level(place), "lost the node at %s: %s", place, self._sender.lost)
                self._retries.reset()
                self._retry_at = now

    def _reattach(self) -> bool:
        """Attaches to the node that came back, keeping producer id and lanes (rule 5)."""
        place, old = self._state.socket, self._state.session
        assert old is not None
        try:
            try:
                session = self._state.attach(ATTACH_TIMEOUT, old.producer_id)
            except er.AttachRefusedError:
                session = self._state.attach(ATTACH_TIMEOUT)  # another folder: it has no such id
        except (er.PenstockError, OSError) as error:
            logger.info("no node yet at %s: %s", place, error)
            return False
        with self._lock:
            self._books.open()
            if self._stopping:
                session.close()
                self._books.close()
                return True
            same = session.node_uuid == old.node_uuid and session.producer_id == old.producer_id
            self._adopt(session)
            self.reconnects += 1
            self._sender.resume(session, same=same)
            old.caller_bell.ring()  # a caller that sleeps on it is to sleep on the new one
            old.close(polite=False)
            self._wake()
            self._books.close()
        logger.info("back at the node at %s", place)
        return True


def _sleep(bell: Doorbell, bound: float) -> None:
    with contextlib.suppress(er.ClosedError):  # the attachment was replaced meanwhile
        bell.wait(bound)


def _awake() -> None:
    """Does not sleep: there is something to read."""
