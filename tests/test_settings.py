"""Every setting that there is has a test that shows its effect, and one a day proves it.

`make settings` proves all (tests/settings_check.py). Here one of the faults runs that are found
without a long wait, by `PENSTOCK_SETTINGS_SEED`, the day's number by default; with
`PENSTOCK_SETTINGS_SECONDS` as many as begin within them.
"""

from __future__ import annotations

import datetime
import os

import settings_check
from marked_tests import marked_tests
from mutants import campaign
from mutants.catalogue import ROOT
from seeds import tell

SOME_TEST = "tests/test_settings.py"
QUICK = (
    *("tests/e2e/test_e2e_cluster_of_one", "tests/e2e/test_e2e_limits"),
    *(f"tests/unit/server/test_server_{name}" for name in ("diskguard", "sessions", "startup")),
)
"""Files whose tests fail soon where a setting has no effect; others wait for what never comes."""


def test_every_setting_is_shown_by_a_test_and_no_test_names_another():
    marked = marked_tests("setting")
    assert sorted(set(settings_check.settings()) - set(marked)) == []
    assert sorted(set(marked) - set(settings_check.settings())) == []


def test_each_setting_can_be_reset_in_the_product():
    """Where the product has moved, the faults have to move with it."""
    found = [settings_check.fault(name, (SOME_TEST,)) for name in settings_check.settings()]
    assert [told for it in found if (told := it.complaint(ROOT))] == []


def test_the_settings_of_the_day_have_an_effect():
    seed = int(os.environ.get("PENSTOCK_SETTINGS_SEED") or f"{datetime.date.today():%Y%m%d}")
    seconds = float(os.environ.get("PENSTOCK_SETTINGS_SECONDS") or 0)
    tell(f"settings of the day: PENSTOCK_SETTINGS_SEED={seed}")
    quick = [it for it in settings_check.faults() if it.tests[0].startswith(QUICK)]
    listed = campaign.share(quick, seed)[: None if seconds else 1]
    report = campaign.run(
        listed, jobs=1, tell=tell, seconds_max=seconds or None, with_baseline=False
    )
    assert report.outcomes
    assert report.complaints == []
