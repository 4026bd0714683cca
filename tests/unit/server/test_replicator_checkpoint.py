"""High watermarks that were written down are read again, or nothing is."""

from __future__ import annotations

from unit.core.log_helpers import MemoryStorage

from penstock.server.replicator.checkpoint import FILE, Checkpoint, encoded, load

KNOWN = {(bytes(range(16)), 0): 70_000, (bytes(16), 3): 5}


def storage_with(data: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    storage.makedirs("data")
    storage.write_file_atomic(f"data/{FILE}", data)
    return storage


def test_what_was_noted_is_there_in_the_next_life() -> None:
    storage = storage_with(encoded({}))
    written = Checkpoint(storage, "data")
    for place, offset in KNOWN.items():
        written.note(place, offset)
    written.note((b"x" * 16, 1), 9)
    written.forget((b"x" * 16, 1))
    written.finish(45.0)
    again = Checkpoint(storage, "data")
    assert {place: again.of(place) for place in KNOWN} == KNOWN
    assert again.of((b"x" * 16, 1)) == 0


def test_notes_with_any_damage_are_not_believed() -> None:
    sound = encoded(KNOWN)
    for at in range(len(sound) * 8):
        damaged = bytearray(sound)
        damaged[at // 8] ^= 1 << at % 8
        assert load(storage_with(bytes(damaged)), "data") in ({}, KNOWN), f"bit {at}"
    for length in range(len(sound)):
        assert load(storage_with(sound[:length]), "data") == {}
