"""Rule 15: no offset is given out twice in one leader epoch, whatever a start finds."""

from __future__ import annotations

import pytest
from unit.core.log_helpers import (
    FOLDER,
    contents,
    filled,
    make_batch,
    open_log,
    rebooted,
)

from penstock.core.epochs import EPOCHS_FILE
from penstock.core.recoverypoint import POINT_FILE
from penstock.core.segment import segment_path

ACTIVE = segment_path(FOLDER, 0)
POINT_PATH = f"{FOLDER}/{POINT_FILE}"


@pytest.mark.rule(15)
@pytest.mark.parametrize(
    ("boot", "clean", "published", "bumped"),
    [
        ("boot-1", False, 6, False),
        ("boot-1", False, None, False),
        ("boot-1", True, None, False),
        ("boot-2", True, None, False),
        ("boot-2", False, None, True),
    ],
)
def test_rule_15_another_boot_without_a_clean_mark_begins_an_epoch(boot, clean, published, bumped):
    storage, _, _ = filled()
    log, report = open_log(storage, boot_id=boot, node_clean=clean, published=published)
    assert (report.epoch_bumped, report.same_boot) == (bumped, boot == "boot-1")
    assert log.leader_epoch == (2 if bumped else 1)
    assert log.epochs.entries == (((1, 0), (2, 6)) if bumped else ((1, 0),))
    # It is on the device before the first append.
    assert open_log(storage.power_cut(), boot_id="boot-3")[0].leader_epoch == log.leader_epoch + 1
    log.append([make_batch(6)], 1)
    [(head, _)] = log.read(6, 1)
    assert head.leader_epoch == log.leader_epoch


@pytest.mark.rule(15)
def test_rule_15_every_unclean_boot_begins_another_epoch():
    storage, _, kept = filled(synced=6)
    for boot in range(2, 6):
        log, _ = open_log(storage, boot_id=f"boot-{boot}")
        assert log.leader_epoch == boot
        log.append([make_batch(log.log_end)], 1)
        storage = storage.power_cut()
    assert contents(log)[:6] == kept
    assert log.epochs.entries == ((1, 0), (5, 6)), "what nobody wrote in is forgotten"


@pytest.mark.rule(15)
def test_rule_15_a_generation_that_falls_begins_an_epoch():
    storage, _, _ = filled()
    log, _ = open_log(storage, generation=9)
    log.append([make_batch(6)], 1)
    log.close(clean=True)
    log, report = open_log(storage, generation=2, node_clean=True)
    assert report.epoch_bumped
    log.append([make_batch(7)], 1)
    log.close(clean=False)
    log, report = open_log(storage, generation=3, published=8)
    assert (log.log_end, report.lost) == (8, None)


@pytest.mark.rule(15)
def test_rule_15_a_cut_begins_an_epoch_where_nobody_knows_what_was_seen():
    storage, places, _ = filled()
    storage.names[ACTIVE].content[places[3][1] + 140] ^= 1
    _, report = open_log(storage, published=None)
    assert (report.same_boot, report.lost, report.epoch_bumped) == (True, (4, 6), True)


@pytest.mark.rule(15)
def test_rule_15_an_epochs_file_from_a_backup_lets_no_epoch_fall():
    storage, _, _ = filled()
    path = f"{FOLDER}/{EPOCHS_FILE}"
    old = bytes(storage.names[path].content)
    log, _ = rebooted(storage)
    log.append([make_batch(6)], 1)
    log.close(clean=True)
    storage.names[path].content[:] = old
    log, report = rebooted(storage, node_clean=True)
    assert report.epoch_bumped
    assert log.leader_epoch == 3
    log.append([make_batch(7)], 1)
    kept = contents(log)
    log, report = rebooted(storage, published=8)
    assert (contents(log), report.lost) == (kept, None)


@pytest.mark.rule(15)
def test_rule_15_epochs_that_the_file_does_not_know_come_from_the_batches():
    storage, _, _ = filled()
    path = f"{FOLDER}/{EPOCHS_FILE}"
    old = bytes(storage.names[path].content)
    log, _ = rebooted(storage)
    log.append([make_batch(6)], 1)
    storage.names[path].content[:] = old
    log, report = rebooted(storage, published=7)
    assert (log.epochs.entries, report.epoch_bumped) == (((1, 0), (2, 6)), False)
    log.sync()
    assert open_log(storage.power_cut(), boot_id="boot-3")[0].epochs.entries[1] == (2, 6)


@pytest.mark.rule(15)
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_rule_15_lost_epochs_come_back_from_the_log_and_a_new_one_begins(how):
    storage, _, _ = filled([300] * 12)
    for boot in ("boot-2", "boot-3"):
        log, _ = open_log(storage, boot_id=boot)
        for _ in range(12):
            log.append([make_batch(log.log_end, body=300)], 1)
        log.close(clean=True)
    assert log.epochs.entries == ((1, 0), (2, 12), (3, 24))
    path = f"{FOLDER}/{EPOCHS_FILE}"
    if how == "deleted":
        del storage.names[path]
    else:
        storage.names[path].content[20] ^= 1
    log, report = open_log(storage, boot_id="boot-3", node_clean=True)
    assert log.epochs.entries == ((1, 0), (2, 12), (3, 24), (4, 36))
    assert report.epoch_bumped
