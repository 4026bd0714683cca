"""The active controller: takes requests, decides them, logs the decisions, and answers.

The machine is ahead of the log by its latest decisions. An answer waits until the log has them,
too. A broker that leads no more throws the machine away, and with it all answers: brokers ask the
next one. A request that is repeated here under the same name is not decided again.

A process that was stopped, or whose loop was held up, heard nobody meanwhile. Then every broker has
a whole session again, before any is fenced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.cluster.controller import Controller, ControllerConfig, pack
from penstock.cluster.decisions import Decision
from penstock.core.errors import NotLeaderError, PenstockError, ResourceLimitError
from penstock.server.quorum import controller_requests
from penstock.server.quorum.messages import Answer, Ask
from penstock.server.quorum.raft_node import RaftNode

logger = logging.getLogger("penstock.quorum")

HELD_MAX: Final = 10_000
"""Answers that wait for the log."""
REMEMBERED_MAX: Final = 4_096
"""Questions whose answers are kept, in case they come again."""
LATE_SHARE: Final = 0.5
"""A look that comes later than this share of a broker's session: nobody was heard meanwhile."""

Name = tuple[bytes, int]


class _Held(NamedTuple):
    """An answer that waits for the log up to there."""

    until: int
    term: int
    source: int
    name: Name
    answer: Answer


class Active:
    """The active controller of this broker. `answer(broker, Answer)` sends an answer.
    `begins(controller)`: this one is active from now on, and takes `decide`. `others`: requests to
    the quorum itself; each returns the entry that the answer waits for, if any, and the answer."""

    def __init__(
        self,
        consensus: RaftNode,
        config: ControllerConfig,
        *,
        answer: Callable[[int, Answer], None],
        begins: Callable[[Controller], None],
        others: Mapping[type, Callable[[Any], tuple[int | None, object]]],
    ) -> None:
        self.controller: Controller | None = None
        self._consensus = consensus
        self._config = config
        self._answer = answer
        self._begins = begins
        self._others = others
        self._loop = asyncio.get_running_loop()
        self._term = 0
        self._looked_at = 0.0
        self._held: deque[_Held] = deque()
        self._known: OrderedDict[Name, Answer | None] = OrderedDict()
        """None: it is held."""

    @property
    def held(self) -> int:
        return len(self._held)

    # --- its term ---
    def turned(self) -> None:
        """Whether this broker's controller is active may have changed."""
        consensus = self._consensus
        raft = consensus.raft
        if self.controller is not None:
            assert raft is not None
            if not consensus.is_leader or raft.term != self._term:
                logger.info("broker %d: its controller is active no more", consensus.node)
                self._end()
        if self.controller is None and consensus.is_ready:
            assert raft is not None
            self._term = raft.term
            self.controller = controller = self._made()
            self._looked_at = self._loop.time()
            controller.lead(self._looked_at, time.time())
            logger.info(
                "broker %d: its controller is active, in term %d", consensus.node, raft.term
            )
            self._begins(controller)

    def _made(self) -> Controller:
        """From the image, and from what is in the log behind it."""
        consensus = self._consensus
        controller = Controller(self._config)
        controller.image = consensus.image.copied()
        raft = consensus.raft
        assert raft is not None
        for entry in raft.log.entries(consensus.applied + 1, raft.log.last_index + 1):
            consensus.replayed(entry, controller.replay)
        return controller

    def _end(self) -> None:
        self.controller = None
        self._held.clear()
        self._known.clear()

    # --- what is asked ---
    def ask(self, source: int, ask: Ask) -> None:
        """Decide, unless it is decided. `NotLeaderError` tells the asker to look for another."""
        self._consensus.look()  # it may lead no more
        controller = self.controller
        if controller is None:
            self._answer(source, controller_requests.refused(ask.number, self._nobody()))
            return
        name = (ask.life, ask.number)
        if name in self._known:
            known = self._known[name]
            if known is not None:
                self._answer(source, known)
            return
        try:
            request = controller_requests.decode_ask(ask.name, ask.body)
            if not isinstance(request, controller_requests.ControllerRequest):
                index, result = self._others[type(request)](request)
                answer = controller_requests.answered(ask.number, result)
                if index is None:
                    self._answer(source, answer)
                else:
                    self.hold(index, self._term, source, name, answer)
                return
            self.decide(request.decide(controller, self._loop.time()), source, name)
        except PenstockError as error:
            self._answer(source, controller_requests.refused(ask.number, error))
        except Exception as error:
            logger.exception("%s of broker %d cannot be decided", ask.name, source)
            failed = PenstockError(f"{ask.name} cannot be decided: {error!r}")
            self._answer(source, controller_requests.refused(ask.number, failed))

    def _nobody(self) -> NotLeaderError:
        leader = self._consensus.leader
        return NotLeaderError(
            f"the controller of broker {self._consensus.node} is not active: "
            + (f"{leader} leads" if leader is not None else "no leader is known now")
        )

    def decide(
        self, decision: Decision[Any], source: int | None = None, name: Name = (b"", 0)
    ) -> None:
        """Into the log, and once it is there, the answer. Raises `NotLeaderError`,
        `ResourceLimitError`; then nothing is decided."""
        controller, raft = self.controller, self._consensus.raft
        assert controller is not None
        assert raft is not None
        if source is not None and len(self._held) >= HELD_MAX:
            raise ResourceLimitError(
                f"{HELD_MAX} answers wait for the controller's log: try again, and look which of "
                f"{raft.members.voters} are up"
            )
        term, index = raft.term, raft.log.last_index
        if decision.records:
            index = self._consensus.propose(pack(decision.records))
            for record in decision.records:
                controller.replay(record)
        if source is not None:
            self.hold(
                index, term, source, name, controller_requests.answered(name[1], decision.answer)
            )

    def hold(self, index: int, term: int, source: int, name: Name, answer: Answer) -> None:
        """Answer when the log counts up to there, if this broker leads until then."""
        if self.controller is None or term != self._term:
            return
        self._held.append(_Held(index, term, source, name, answer))
        self._remember(name, None)
        self.committed(self._consensus.applied, term)

    def _remember(self, name: Name, answer: Answer | None) -> None:
        self._known[name] = answer
        self._known.move_to_end(name)
        while len(self._known) > REMEMBERED_MAX + len(self._held):
            self._known.popitem(last=False)

    def committed(self, index: int, term: int) -> None:
        """The log counts up to there, where an entry of that term is."""
        while self._held and self._held[0].until <= index:
            held = self._held.popleft()
            if held.term == term or held.until < index:
                self._remember(held.name, held.answer)
                self._answer(held.source, held.answer)

    # --- time ---
    def look(self, gone: Iterable[int]) -> None:
        """Fences silent brokers, those that are `gone` at once, and has preferred replicas lead."""
        self._consensus.look()
        controller = self.controller
        if controller is None:
            return
        now = self._loop.time()
        if now - self._looked_at > LATE_SHARE * self._config.session_timeout:
            controller.lead(now, time.time())
        self._looked_at = now
        for broker in gone:
            controller.gone(broker)
        if not self._decided(
            controller.tick(now, time.time()), "the controller cannot decide what is due"
        ):
            return
        if self.controller is not controller:
            return
        moves = controller.balance(now)
        if self._decided(moves, "first replicas cannot lead again") and moves.answer:
            logger.info("partitions that their first replica leads again: %d", moves.answer)

    def _decided(self, decision: Decision[Any], otherwise: str) -> bool:
        """Decides a change that no request asked for. Returns whether it could be decided."""
        if decision.records:
            try:
                self.decide(decision)
            except (NotLeaderError, ResourceLimitError) as error:
                logger.warning("%s now: %s", otherwise, error)
                return False
        return True
