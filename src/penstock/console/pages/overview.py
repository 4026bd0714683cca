"""The overview: figures of one look, and one sentence that says whether all is well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from penstock.operations.wording import counted, human_age, human_bytes, human_count

TROUBLES_SHOWN: Final = 20
NAMED_MAX: Final = 3
"""Of what is to look at and no fault, in the sentence."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something to look at. `page`: where to go on; empty: nowhere. `is_wrong` false: worth
    knowing, and no fault."""

    subject: str
    what: str
    advice: str
    page: str = ""
    is_wrong: bool = True


@dataclass(frozen=True, slots=True)
class GroupFigures:
    group: str
    guarantee: str
    state: str
    members: int
    lag: int
    lag_seconds: float | None
    complaints: tuple[Trouble, ...] = ()


@dataclass(slots=True)
class Figures:
    """One look at the node. `away`: why it could not be looked at. Rates are None at the first
    look. `hidden`: what the principal may not see. `topics_seen`, `groups_seen`: of how many the
    sums are."""

    at: float
    url: str = ""
    away: str = ""
    is_clustered: bool = False
    topics: int = 0
    topics_seen: int = 0
    partitions: int = 0
    clients: int = 0
    records_per_second: float | None = None
    bytes_per_second: float | None = None
    groups: int = 0
    groups_seen: int = 0
    lag: int = 0
    lag_seconds: float = 0.0
    dead_letters: dict[str, int] = field(default_factory=dict)
    transactions_held: int = 0
    brokers: int = 0
    brokers_up: int = 0
    ill_partitions: int = 0
    disk_free: int | None = None
    disk_total: int = 0
    disk_level: str = ""
    hidden: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name; `key` names it in what the browser hears."""

    key: str
    label: str
    value: str
    note: str
    page: str
    is_wrong: bool = False


def verdict(figures: Figures) -> tuple[str, bool]:
    """The sentence, and whether all is well."""
    if figures.away:
        return f"The node is away: {figures.away}", False
    wrong = [each for each in figures.troubles if each.is_wrong]
    if not wrong:
        found = [each.subject for each in figures.troubles if not each.is_wrong]
        beyond = len(found) - NAMED_MAX
        named = [*found[:NAMED_MAX], *([f"{beyond} more"] if beyond > 0 else [])]
        if dead := sum(figures.dead_letters.values()):
            named.append(counted(dead, "dead letter"))
        more = f" To look at: {', '.join(named)}." if named else ""
        return f"All is well.{more}", True
    first = wrong[0]
    rest = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"Not well: {first.subject}: {first.what}{rest}.", False


def tiles(figures: Figures) -> list[Tile]:
    """The figures, as the page and the browser's updates show them."""
    rate, nbytes = figures.records_per_second, figures.bytes_per_second
    dead = sum(figures.dead_letters.values())
    seen = "" if figures.topics_seen >= figures.topics else f", of {figures.topics_seen} topics"
    known = "" if figures.groups_seen >= figures.groups else f", of {figures.groups_seen} groups"
    found = [
        Tile("rate", "Records/s", "-" if rate is None else human_count(rate),
             ("counting" if nbytes is None else f"{human_bytes(nbytes)}/s") + seen, "/topics"),
        Tile("lag", "Lag", human_count(figures.lag),
             f"records, oldest {human_age(figures.lag_seconds)}{known}", "/groups"),
        Tile("groups", "Groups", str(figures.groups), counted(figures.clients, "client"),
             "/groups"),
        Tile("dead", "Dead letters", human_count(dead),
             f"in {counted(len(figures.dead_letters), 'topic')}{seen}", "/letters"),
        Tile("topics", "Topics", human_count(figures.topics),
             counted(figures.partitions, "partition"), "/topics"),
    ]  # fmt: skip
    if figures.disk_free is not None:
        share = figures.disk_free / max(figures.disk_total, 1)
        found.append(Tile("disk", "Disk free", human_bytes(figures.disk_free),
                          f"{share:.0%} of {human_bytes(figures.disk_total)}", "/cluster",
                          figures.disk_level != "ok"))  # fmt: skip
    if figures.brokers:
        found.append(Tile(
            "brokers", "Brokers up", f"{figures.brokers_up}/{figures.brokers}",
            f"{counted(figures.ill_partitions, 'partition')} not in sync", "/cluster",
            figures.brokers_up < figures.brokers or bool(figures.ill_partitions),
        ))  # fmt: skip
    return found


def live_fields(figures: Figures) -> dict[str, Any]:
    """The same as a browser hears it, once for all browsers."""
    sentence, is_well = verdict(figures)
    return {
        "at": round(figures.at, 3),
        "verdict": sentence,
        "well": is_well,
        "away": bool(figures.away),
        "rate": figures.records_per_second,
        "bytes": figures.bytes_per_second,
        "lag": figures.lag,
        "tiles": {
            each.key: [each.value, each.note, each.is_wrong] for each in tiles(figures)
        },
    }  # fmt: skip
