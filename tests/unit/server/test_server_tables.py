"""The shared tables of a folder: reused in place within a boot, and slots that go round."""

from __future__ import annotations

import os

import pytest

from penstock.ipc import layout as lo
from penstock.ipc import shm
from penstock.ipc.clients import ClientSlot
from penstock.ipc.shm import Region
from penstock.server.node.tables import Tables


@pytest.fixture
def uuid():
    value = os.urandom(16).hex()
    yield value
    for name in shm.listing(f"/penstock-{value}"):
        shm.unlink(name)


@pytest.fixture
def tables(uuid):
    made = Tables(uuid)
    yield made
    made.close()


@pytest.mark.rule(10)
def test_rule_10_the_next_node_goes_on_with_the_same_memory(uuid, tables):
    tables.page(5).claim(b"t" * 16, 2, 1)
    tables.page(5).publish_ends(10, 10, 10)
    successor = Tables(uuid)
    assert successor.page(5).log_end == 10
    successor.page(5).publish_ends(11, 11, 11)
    assert tables.page(5).log_end == 11  # so a client that has it mapped goes on
    successor.close()


@pytest.mark.parametrize("kind", ["state", "clients"])
@pytest.mark.parametrize("damage", ["unfinished", "empty", "of another version"])
def test_a_table_that_cannot_be_used_is_made_anew(uuid, kind, damage):
    Tables(uuid).close()
    name = shm.object_name(uuid, kind)
    if damage == "empty":
        os.truncate(f"/dev/shm{name}", 0)
    else:
        with Region.of_fd(shm.open_existing(name, writable=True)) as region:
            region.q[0 if damage == "unfinished" else 1] ^= 0xFF
    again = Tables(uuid)
    assert again.page(0).identity is None
    assert again.take_slot(1, 2, lo.KIND_CONSUMER) == 0
    again.close()


@pytest.mark.rule(28)
def test_clients_cannot_write_the_state_table(tables):
    assert os.get_inheritable(tables.state_fd) is False
    with pytest.raises(PermissionError):
        Region.of_fd(os.dup(tables.state_fd), writable=True)


def test_a_slot_is_given_again_only_after_all_others(tables):
    first = tables.take_slot(10, 20, lo.KIND_CONSUMER)
    assert ClientSlot(tables.clients, first).pid == 10
    tables.give_slot_back(first)
    others = [tables.take_slot(1, 1, lo.KIND_CONSUMER) for _ in range(lo.CLIENTS_MAX - 1)]
    assert first not in others
    assert tables.take_slot(1, 1, lo.KIND_CONSUMER) == first


def test_slots_of_the_run_before_are_free_but_given_last(uuid, tables):
    used = [tables.take_slot(10, 20, lo.KIND_CONSUMER) for _ in range(3)]
    successor = Tables(uuid)
    assert not ClientSlot(tables.clients, used[0]).in_use
    taken = [successor.take_slot(1, 1, lo.KIND_PRODUCER) for _ in range(lo.CLIENTS_MAX)]
    assert taken[-3:] == used
    successor.close()


def test_a_page_is_free_until_it_is_claimed_and_again_once_its_writer_gave_it_up(tables):
    assert tables.is_page_free(7)
    tables.page(7).claim(b"t" * 16, 0, 1)
    for status in (lo.STATUS_ONLINE, lo.STATUS_OFFLINE, lo.STATUS_FULL):
        tables.page(7).publish_status(status)
        assert not tables.is_page_free(7)
    tables.page(7).publish_status(lo.STATUS_DELETED)
    assert tables.is_page_free(7)


def test_nothing_is_left_after_unlinking(uuid):
    made = Tables(uuid)
    made.unlink()
    made.close()
    assert shm.listing(f"/penstock-{uuid}") == []
