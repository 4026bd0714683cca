"""docs/protocol.md says what the structs say: every message, its fields in order, and every bound
that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from penstock.cluster.frames import messages as fr
from penstock.core.errors import ErrorCode
from penstock.ipc import accessing as ac
from penstock.ipc import clustering as cg
from penstock.ipc import coordination as co
from penstock.ipc import lookups as lk
from penstock.ipc import messages as ms
from penstock.ipc import operating as op
from penstock.ipc import sharing
from penstock.server.gateway.forward import Allowed

TEXT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
NOT_ANSWERS = {"welcome", "lane_opened", "floor_found"}  # of an attachment on the node's host


def tag_of(struct: Any) -> str:
    return str(struct.__struct_config__.tag)


def names_of(struct: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(struct)]


def sections() -> dict[str, list[tuple[str, str]]]:
    """Heading -> (field, type) of its table."""
    found = {}
    for part in TEXT.split("\n#### ")[1:]:
        part = part.split("\n## ")[0].split("\n### ")[0]
        heading = part.splitlines()[0].strip("`")
        found[heading] = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", part, re.M)
    return found


def rows(header: str) -> dict[str, list[str]]:
    """First cell -> words in code of the second, of the table with that header."""
    table = TEXT.split(f"\n| {header} | fields |")[1].split("\n\n")[0]
    cells = (line.strip("|").split("|") for line in table.splitlines()[2:])
    return {cell[0].strip(" `"): re.findall(r"`(\w+)`", cell[1]) for cell in cells}


MESSAGES = [*get_args(fr.ClientMessage), *get_args(fr.GatewayMessage)]


@pytest.mark.parametrize("message", [*MESSAGES, fr.PageState, fr.Ack], ids=lambda m: m.__name__)
def test_messages_stand_there_with_their_fields(message):
    name = tag_of(message) if message in MESSAGES else message.__name__
    described = sections()[name]
    assert [field for field, _ in described] == names_of(message)
    optional = [field for field, kind in described if "optional" in kind]
    assert optional == [f.name for f in msgspec.structs.fields(message) if not f.required]


def test_no_message_stands_there_that_is_none():
    assert set(sections()) == {*map(tag_of, MESSAGES), "PageState", "Ack"}


def test_requests_and_answers_stand_there_with_their_fields():
    requests = {tag_of(struct): names_of(struct) for struct in get_args(Allowed)}
    assert rows("request") == requests
    replies = [*get_args(ms.NodeMessage), *get_args(lk.Reply)]
    answers = {tag_of(struct): names_of(struct) for struct in replies}
    assert rows("answer") == {tag: answers[tag] for tag in answers if tag not in NOT_ANSWERS}


def test_structures_of_requests_stand_there_with_their_fields():
    assert rows("structure")
    for heading, fields in rows("structure").items():
        name, _, mark = heading.partition(" ")
        struct = next(
            getattr(m, name) for m in (ms, co, lk, ac, cg, op, sharing) if hasattr(m, name)
        )
        assert fields == names_of(struct), name
        assert bool(mark) == struct.__struct_config__.array_like, name


def test_every_number_of_an_error_stands_there():
    numbers = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", TEXT, re.M)
    assert {name: int(number) for number, name in numbers} == dict(ErrorCode.__members__)


@pytest.mark.parametrize(
    "bound",
    [fr.CLIENT_HEADER_MAX, fr.GATEWAY_HEADER_MAX, fr.ENDPOINTS_MAX, fr.CURSORS_MAX,
     fr.POSITIONS_MAX, fr.EPOCHS_MAX, fr.NAME_BYTES_MAX],
)  # fmt: skip
def test_bounds_stand_there(bound):
    assert re.search(rf"\b({bound}|{bound:,})\b", TEXT)


def test_every_api_stands_there():
    table = TEXT.split("\n| api | messages | versions |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| (?:1 to )?(\d+) \|", table, re.M)
    assert {api: (1, int(high)) for api, _, high in named} == fr.APIS
    assert {tag for _, tags, _ in named for tag in tags.split(", ")} == set(map(tag_of, MESSAGES))
