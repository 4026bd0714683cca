"""`penstock bench scale` at a size that takes no time, and the page of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.bench.cli import main

FAULTS = ("lost", "doubled", "out_of_order", "foreign")


def slow(case: str) -> Any:
    return pytest.param(case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "curve",
    ["partitions/keys", slow("partitions/small"), slow("producers"), slow("consumers"),
     slow("size"), slow("connections"), slow("backlog")],
)  # fmt: skip
def test_a_short_run_measures_each_point_and_has_a_page(curve, tmp_path, capsys):
    words = ["--quick", "--only", curve, "--records", "5000", "--seconds", "2"]
    code = main(["scale", *words, "--data", str(tmp_path), "--format", "json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    result = json.loads(out)
    key = curve.partition("/")[0]
    assert list(result["curves"]) == [key]
    for point in result["curves"][key]:
        [turn] = point["turns"]
        assert turn["records_per_second"] > 0
        assert turn["batch"] > 0
        assert set(turn["us"]) >= {"producers", "node"}
        assert [turn[name] for name in FAULTS if name in turn] == [0] * sum(
            name in turn for name in FAULTS
        )
    assert result["lost"] == result["doubled"] == 0
    assert list(tmp_path.glob("penstock-bench-*")) == []
    file, page = tmp_path / "scale.json", tmp_path / "scale.md"
    file.write_text(out)
    assert main(["scale-page", str(file), "--output", str(page)]) == 0
    rate = result["curves"][key][0]["turns"][0]["records_per_second"]
    assert f"| **{rate:,}** ({rate:,} to {rate:,}) |" in page.read_text()
    assert page.with_name(f"scale-{key}.png").read_bytes().startswith(b"\x89PNG")
