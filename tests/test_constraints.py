"""`constraints.txt`, which CI installs by hashes, has what `setup.cfg` declares."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def declared() -> list[Requirement]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    found = [Requirement(line) for text in texts for line in text.split("\n") if line]
    return [each for each in found if each.name != "penstock"]


def locked() -> dict[str, list[str]]:
    """Versions by name: another interpreter may have another one."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^(\S+?)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE
    ):
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


def test_every_dependency_has_a_version_that_setup_cfg_allows():
    versions = locked()
    assert len(declared()) > 15
    for each in declared():
        there = versions.get(canonicalize_name(each.name))
        assert there, f"constraints.txt lacks {each.name}: run `make constraints`"
        assert all(each.specifier.contains(version) for version in there), f"{each}, not {there}"


def test_every_version_has_a_hash():
    entries = re.split(r"^(?=\S)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    named = [entry for entry in entries if "==" in entry]
    assert len(named) > 30
    assert [entry for entry in named if "--hash=sha256:" not in entry] == []
