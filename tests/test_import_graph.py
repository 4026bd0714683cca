"""The house: imports point down, and the files that import each other in circles only get fewer."""

from __future__ import annotations

from pathlib import Path

import pytest
from import_graph import FLOORS, Graph, circles, floor_of, graph, room_of, upward

CIRCLES = Path(__file__).with_name("circles.txt")


@pytest.fixture(scope="module")
def edges() -> Graph:
    """Read by one of the processes of a run; each of them reads this file."""
    return graph()


def test_each_room_has_a_floor(edges):
    rooms = {room_of(module) for module in edges} - {"penstock"}
    assert rooms == {room for rooms in FLOORS for room in rooms}
    assert floor_of("core") == 0


def test_no_import_points_up(edges):
    """What tests use is on the top floor, too: no product module imports a testing one."""
    assert upward(edges) == []


def test_the_console_imports_nothing_of_the_command_line(edges):
    """They share `operations`: a page needs no terminal."""
    found = [(module, other) for module, others in edges.items() for other in others
             if room_of(module) in ("console", "demo") and room_of(other) == "cli"]  # fmt: skip
    assert found == []


def test_circles_of_files_only_get_fewer(edges):
    """Who takes one apart takes its files from the list."""
    listed = CIRCLES.read_text().split()
    assert sorted(set(listed)) == listed
    assert sorted(module for circle in circles(edges) for module in circle) == listed


def test_a_circle_and_an_arrow_up_are_seen():
    edges = {
        "penstock.core.a": {"penstock.core.b"},
        "penstock.core.b": {"penstock.core.c", "penstock.core.d"},
        "penstock.core.c": {"penstock.core.a"},
        "penstock.core.d": {"penstock.ipc.e"},
        "penstock.ipc.e": {"penstock.cluster.f"},
        "penstock.cluster.f": set(),
    }
    assert circles(edges) == [["penstock.core.a", "penstock.core.b", "penstock.core.c"]]
    assert upward(edges) == [
        ("penstock.core.d", "penstock.ipc.e"),
        ("penstock.ipc.e", "penstock.cluster.f"),
    ]
