"""Nodes of a simulation: they have a name, tasks, timers and messages, all of which a crash ends.

A task is a generator: it yields `Sleep` or `Ask` and is resumed with None or with the answer. A
request may be carried out several times or never, and the answer may be lost: `NoAnswer` is thrown
into a task that gave up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from penstock.testing.sim.network import Message, Network

if TYPE_CHECKING:
    from penstock.testing.sim.kernel import Simulation


class Sleep(NamedTuple):
    seconds: float


class Ask(NamedTuple):
    """Send `question` to a node until it answers: every `timeout` seconds, `tries` times."""

    to: str
    question: Any
    timeout: float = 0.5
    tries: int = 6


class NoAnswer(Exception):
    """Nobody answered: what was asked may have been done, or not, or may yet be done."""


Task: TypeAlias = Generator[Sleep | Ask, Any, Any]
Reply: TypeAlias = Callable[[Any], None]


class Node:
    """Subclasses say what happens at `on_start` and `on_ask`; memory that a crash must not keep is
    made in `on_start`."""

    def __init__(self, sim: Simulation, network: Network, name: str) -> None:
        self.sim = sim
        self.network = network
        self.name = name
        self.is_up = False
        self.is_paused = False
        self.life = 0
        self._held: list[Callable[[], None]] = []
        self._waiting: dict[int, tuple[Task, Callable[[Any], None]]] = {}
        self._tasks: dict[Task, None] = {}
        network.add(self)

    # --- for subclasses ---------------------------------------------------------------------------
    def on_start(self) -> None: ...

    def on_crash(self) -> None:
        """Shows other nodes at once that the process is gone."""

    def on_ask(self, source: str, question: Any, reply: Reply) -> None:
        raise NotImplementedError(f"{self.name} answers no questions")

    # --- life -------------------------------------------------------------------------------------
    def start(self) -> None:
        if not self.is_up:
            self.is_up, self.is_paused = True, False
            self.life += 1
            self.sim.note(f"{self.name} starts, life {self.life}")
            self.on_start()

    def crash(self) -> None:
        if self.is_up:
            self.is_up = False
            self.sim.note(f"{self.name} crashes")
            self._held.clear()
            self._waiting.clear()
            tasks, self._tasks = self._tasks, {}
            for task in tasks:
                if getgeneratorstate(task) != GEN_RUNNING:  # else it crashed its own node
                    task.close()
            self.on_crash()

    def pause(self) -> None:
        """Stops the node, as after SIGSTOP: its events happen at `resume`."""
        self.is_paused = self.is_up

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for call in held:
            self.sim.after(0.0, f"{self.name} goes on", call)

    def after(self, delay: float, what: str, call: Callable[[], None]) -> None:
        """Sets a timer of this life."""
        life = self.life

        def fire() -> None:
            if not self.is_up or self.life != life:
                return
            if self.is_paused:
                self._held.append(fire)
            else:
                call()

        self.sim.after(delay, f"{self.name}: {what}", fire)

    # --- messages ---------------------------------------------------------------------------------
    def receive(self, source: str, message: Message) -> None:
        if self.is_paused:
            life = self.life
            self._held.append(lambda: self.receive(source, message) if self.life == life else None)
        elif not message.is_answer:

            def reply(body: Any, life: int = self.life) -> None:
                if self.is_up and self.life == life:
                    self.network.send(self.name, source, Message(message.number, True, body))

            self.on_ask(source, message.body, reply)
        elif (waiting := self._waiting.pop(message.number, None)) is not None:
            waiting[1](message.body)

    # --- tasks ------------------------------------------------------------------------------------
    def spawn(self, task: Task) -> None:
        self._tasks[task] = None
        self._advance(task, lambda: next(task))

    def _advance(self, task: Task, resume: Callable[[], Sleep | Ask]) -> None:
        try:
            wanted = resume()
        except StopIteration:
            self._tasks.pop(task, None)
            return
        if task not in self._tasks:  # it crashed its own node
            task.close()
        elif isinstance(wanted, Sleep):
            go_on = partial(self._advance, task, partial(next, task))
            self.after(wanted.seconds, "wakes", go_on)
        else:
            self._ask(task, wanted)

    def _ask(self, task: Task, ask: Ask) -> None:
        number = self.sim.number()
        self._waiting[number] = (
            task,
            lambda body: self._advance(task, lambda: task.send(body)),
        )

        def attempt(tries: int) -> None:
            if number not in self._waiting:
                return
            if tries == 0:
                del self._waiting[number]
                self._advance(task, lambda: task.throw(NoAnswer(f"{ask.to}: {ask.question!r}")))
                return
            self.network.send(self.name, ask.to, Message(number, False, ask.question))
            self.after(ask.timeout, f"waits for {number}", lambda: attempt(tries - 1))

        attempt(ask.tries)
