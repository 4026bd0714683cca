"""The processes of a run: who fails, dies or hangs ends it by name, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from penstock.bench import crew as crew_module
from penstock.bench.crew import Crew, Station
from penstock.bench.errors import BenchTimeout, MemberFailed

TIMEOUT = 45.0


def echo(task: str, station: Station) -> None:
    station.report((task, os.getpid()))
    station.report(station.await_order())


def fail(task: str, station: Station) -> None:
    raise ValueError(f"no {task} today")


def die(task: str, station: Station) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(task: str, station: Station) -> None:
    wait_for_godot(station)


def wait_for_godot(station: Station) -> None:
    station.report(os.getpid())
    threading.Event().wait()


def test_reports_and_orders_go_both_ways():
    with Crew(TIMEOUT) as crew:
        crew.add("a", echo, "first")
        crew.add("b", echo, "second")
        found = crew.gather("up")
        assert [report[0] for report in found.values()] == ["first", "second"]
        assert len({os.getpid(), *(report[1] for report in found.values())}) == 3
        crew.tell("go")
        assert crew.gather("done") == {"a": "go", "b": "go"}
        crew.dismiss()


def test_a_failure_brings_its_traceback_and_ends_the_others():
    with Crew(TIMEOUT) as crew:
        crew.add("good", echo, "x")
        pid = crew.gather("up")["good"][1]
        crew.add("bad", fail, "luck")
        with pytest.raises(MemberFailed, match=r"(?s)bad failed:.*ValueError: no luck today"):
            crew.gather("done")
    assert not psutil.pid_exists(pid)


def test_a_sudden_death_is_named():
    with Crew(TIMEOUT) as crew:
        crew.add("victim", die, "x")
        with pytest.raises(MemberFailed, match=r"victim failed:\n.*SIGKILL"):
            crew.gather("done")


def test_a_stuck_member_is_named_with_its_stack(monkeypatch):
    with Crew(TIMEOUT) as crew:
        crew.add("stuck", hang, "x")
        pid = crew.gather("up")["stuck"]
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + TIMEOUT)
        monkeypatch.setattr(crew_module, "time", later)
        with pytest.raises(BenchTimeout, match=r"(?s)not done within .*stuck.*wait_for_godot"):
            crew.gather("done")
    assert not psutil.pid_exists(pid)
