"""Asks promtool which alerts of `docs/guide/alerts.yml` fire by given series.

promtool answers whether an expectation holds, and else says what it got: so one run expects that
nothing fires, and its complaints name what does.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

RULES = Path(__file__).resolve().parents[1] / "docs/guide/alerts.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: Debian's package prometheus has it"
)
MINUTES = (20, 30)
"""When the alerts are asked for."""
_TOLD = re.compile(r'\{alertname="(\w+)", case="([^"]+)"\}')


def fired(folder: Path, cases: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """Returns the alerts that fire, by case. A case has promtool's series by name, with 31 values,
    one a minute. `folder` takes the file that promtool reads."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {"expr": _firing(case), "eval_time": f"{minute}m", "exp_samples": []}
                for minute in MINUTES
            ],
        }
        for case, series in cases.items()
    ]
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    file = folder / "alerts.json"
    file.write_text(json.dumps(document))
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    found: dict[str, set[str]] = {case: set() for case in cases}
    told = ran.stdout + ran.stderr
    for alert, case in _TOLD.findall(told):
        found[case].add(alert)
    assert ran.returncode == 0 or any(found.values()), told
    return found


def _firing(case: str) -> str:
    found = 'group by (alertname) (ALERTS{alertstate="firing"})'
    return f'label_replace({found}, "case", "{case}", "", "")'
