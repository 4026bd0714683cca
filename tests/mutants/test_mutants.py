"""The catalogue of faults applies, and a share of it that changes from day to day is found.

`make mutants` runs all of it. A share begins no fault after `PENSTOCK_MUTANTS_SECONDS`, in the
order that the seed of the day gives (`tests/seeds.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import pytest
from mutants import campaign
from mutants.catalogue import ROOT, Mutant, is_there, load
from mutants.scratch import BROKEN, FOUND, SURVIVED, Scratch
from seeds import seed_of_day, tell

AREAS = {"core", "ipc", "cluster", "server", "client", "spark"}
BY_CHANCE = {"histories"}
"""Areas of faults that trials find sooner or later: a share of the day is to find all it plants."""
FAULTS_MIN = 120


def test_every_fault_of_the_catalogue_applies_and_names_its_tests():
    assert [complaint for it in load() if (complaint := it.complaint())] == []


def test_the_catalogue_covers_every_area_with_ids_of_their_own():
    listed = load()
    assert {it.area for it in listed} >= AREAS
    assert [name for name, count in Counter(it.id for it in listed).items() if count > 1] == []
    assert sum(not it.harmless for it in listed) >= FAULTS_MIN


SOUND = Mutant(
    id="x", area="core", says="", file="core/epochs.py", old="return None if data is None else",
    new="return None if data else", tests=("tests/test_two_stages.py",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, ""),
        ({"file": "core/nothing.py"}, "is not there"),
        ({"old": "no such text"}, "0 times"),
        ({"old": "return None"}, "times, not once"),
        ({"new": SOUND.old}, "changes nothing"),
        ({"new": "return None if data is None"}, "does not compile"),
        ({"tests": ()}, "names tests, or says why"),
        ({"harmless": "why"}, "names tests, or says why"),
        ({"tests": ("tests/nothing.py",)}, "no such tests"),
        ({"tests": ("tests/test_two_stages.py::test_nothing",)}, "no such tests"),
    ],
)
def test_a_fault_that_cannot_be_run_is_told(change, complaint):
    told = dataclasses.replace(SOUND, **change).complaint()
    assert complaint in told
    assert bool(told) == bool(complaint)


def test_a_parametrised_test_is_named_by_its_function():
    file = "tests/mutants/test_mutants.py"
    assert is_there(ROOT, f"{file}::test_a_fault_that_cannot_be_run_is_told[one]")
    assert not is_there(ROOT, f"{file}::test_a_fault")


def test_a_planted_fault_is_found_taken_out_again_and_survives_where_nobody_looks(tmp_path):
    copy = Scratch(tmp_path)
    watched, unwatched = "test_core_epochs.py", "test_core_zstd.py"
    fault = dataclasses.replace(
        SOUND,
        old="        return self._entries[-1][0] if self._entries else 0",
        new="        return 0",
        tests=(f"tests/unit/core/{watched}",),
    )
    found = copy.run_with(fault)
    assert (found.verdict, len(found.failed)) == (FOUND, 1), found.output
    assert watched in found.by
    assert (copy.tree / fault.file).read_bytes() == (ROOT / fault.file).read_bytes()
    unseen = dataclasses.replace(fault, tests=(f"tests/unit/core/{unwatched}",))
    survivor = copy.run_with(unseen)
    assert survivor.verdict == SURVIVED, survivor.output
    assert copy.run(("tests/no_such_file.py",)).verdict == BROKEN
    report = campaign.Report({"unseen": survivor})
    assert report.complaints == ["unseen: no test failed"]


def test_the_share_of_the_day_is_found():
    seed = seed_of_day()
    seconds = float(os.environ.get("PENSTOCK_MUTANTS_SECONDS") or 5)
    tell(f"faults of the day: make mutants ARGS='--seed {seed}'")
    found_surely = [it for it in load() if not it.harmless and it.area not in BY_CHANCE]
    listed = campaign.share(found_surely, seed)
    report = campaign.run(listed, jobs=1, tell=tell, seconds_max=seconds, with_baseline=False)
    assert report.outcomes
    assert report.complaints == []
