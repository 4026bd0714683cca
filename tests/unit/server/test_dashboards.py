"""Grafana's dashboards: the files are what the script makes, and ask for metrics that are there."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from alert_rules import PROMTOOL, needs_promtool
from dashboards import DASHBOARDS, FOLDER, WIDTH, dashboard, text
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from penstock.server.health.families import FAMILIES

PANELS = [panel for _, panels in DASHBOARDS.values() for panel in panels]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_files_are_what_the_script_makes(name):
    assert (FOLDER / f"{name}.json").read_text() == text(name), (
        "python tests/dashboards.py --write makes them"
    )
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_lie_beside_each_other_with_a_query_each(name):
    found = dashboard(name)
    assert found["uid"] == f"penstock-{name}"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WIDTH
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        taken |= cells
        [target] = panel["targets"]
        assert target["expr"]
        assert target["datasource"]["uid"] == "${source}"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_queries_and_legends_name_metrics_and_labels_that_are_there(panel):
    names = [name.removesuffix("_bucket") for name in re.findall(r"penstock_\w+", panel.query)]
    assert names
    for name in names:
        assert name in FAMILIES
    labels = {label for name in names for label in FAMILIES[name].labels}
    assert set(re.findall(r"\{\{(\w+)\}\}", panel.legend)) <= labels | {"instance"}


def lost(before: Any, after: Any, where: str = "") -> list[str]:
    """The places in `before` that are not the same in `after`, which may have more."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(f"{where}.{key}", value, after.get(key)) for key, value in before.items()]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [
            (f"{where}.{nth}", *each) for nth, each in enumerate(zip(before, after, strict=True))
        ]
    else:
        return [] if before == after else [where]
    return [place for name, one, other in pairs for place in lost(one, other, name)]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_own_schema_knows_every_field(name):
    """It is made into Grafana's types and back: a field that they lack would be lost."""
    register_default_plugins()
    found = json.loads((FOLDER / f"{name}.json").read_text())
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(found)))
    assert lost(found, back) == []
    assert lost({**found, "refreshed": "15s"}, back) == [".refreshed"]


@needs_promtool
def test_promtool_reads_every_query(tmp_path):
    rules = [
        {"record": f"q{number}", "expr": panel.query.replace("$__rate_interval", "1m")}
        for number, panel in enumerate(PANELS)
    ]
    file = tmp_path / "queries.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    assert PROMTOOL is not None
    ran = subprocess.run([PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
