"""Every setting takes effect: which settings there are, which tests show them, a fault for each.

A test that shows by behaviour that a setting's value counts carries `setting("node.rack")`. It has
to fail where the setting is reset to its default behind the checks of its value: `faults` builds
that fault, as one of `mutants`, and

    python tests/settings_check.py [--seconds 60] [--seed 20261122] [--jobs 2] [text ...]

runs the marked tests with it. A text chooses the settings with it in their name.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from marked_tests import marked_tests
from mutants import campaign
from mutants.catalogue import Mutant

from penstock.client import client, options
from penstock.client.admin.admin import Admin
from penstock.client.admin.topic_config import TopicConfig
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.producer.config import ProducerConfig
from penstock.client.transactions.producer import TransactionalProducer
from penstock.client.transactions.stages import Stage
from penstock.outbox.config import RelayConfig
from penstock.server.config import NodeConfig

TESTS: Final = Path(__file__).resolve().parent
REQUIRED: Final = object()
"""Has no default: the fault puts another value in its place."""


@dataclass(frozen=True, slots=True)
class Area:
    """Settings that belong together, and where each is reset: at `anchor`, a text that `file` holds
    once, for which `reset` comes in."""

    defaults: dict[str, Any]
    file: str
    anchor: str
    reset: str
    """Has `{anchor}`, `{name}` and `{value}`: the default, or an expression for another value."""


def _fields(kind: type) -> dict[str, Any]:
    """The fields of a dataclass, with their defaults."""
    return {
        field.name: REQUIRED if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(kind)
    }


def _named(call: Any, names: Any) -> dict[str, Any]:
    """Those of `names` that are parameters of `call`, with their defaults."""
    return {
        name: REQUIRED if it.default is inspect.Parameter.empty else it.default
        for name, it in inspect.signature(call).parameters.items()
        if name in names
    }


_FROZEN: Final = "{anchor}        object.__setattr__(self, {name!r}, {value})\n"
_BEFORE: Final = "        {name} = {value}\n{anchor}"
EARLY: Final = {
    "node.cluster_listen": "its default is filled in from others",
    "node.metrics_public": "it counts only for a check",
}
"""Reset before the checks, and why."""
_EARLY: Final = '        if not self.data_folder or "\\0" in self.data_folder:\n'

AREAS: Final = {
    "node": Area(
        _fields(NodeConfig),
        "src/penstock/server/config.py",
        '            object.__setattr__(self, "cluster_listen", self.voters[self.node_id])\n',
        _FROZEN,
    ),
    "topic": Area(
        _fields(TopicConfig),
        "src/penstock/client/admin/topic_config.py",
        "_travelling(name, value) for name, value in given.items()",
        "{anchor} if name != {name!r}",
    ),
    "producer": Area(
        _fields(ProducerConfig),
        "src/penstock/client/producer/config.py",
        "            raise er.ConfigError("
        "\"acks=0 waits for no writer, so durability='fsynced' needs acks=1\")\n",
        _FROZEN,
    ),
    "transaction": Area(
        _named(TransactionalProducer.__init__, options.TransactionOptions.__annotations__),
        "src/penstock/client/transactions/producer.py",
        '        check_text("transactional_id", transactional_id)\n        check_range(',
        _BEFORE,
    ),
    "stage": Area(
        _named(Stage.__init__, options.StageOptions.__annotations__),
        "src/penstock/client/transactions/stages.py",
        '        check_text("transactional_id", transactional_id)\n        check_integer(',
        _BEFORE,
    ),
    "consumer": Area(
        _named(Consumer.__init__, options.ConsumerOptions.__annotations__),
        "src/penstock/client/consumer/consumer.py",
        "        check_consumer_options(on_out_of_range, ",
        _BEFORE,
    ),
    "group": Area(
        _named(GroupConsumer.__init__, options.GroupOptions.__annotations__),
        "src/penstock/client/consumer/group/consumer.py",
        "        topics = [as_topic(topic) for topic in topics]\n        listeners = (",
        _BEFORE,
    ),
    "client": Area(
        _named(client.connect, inspect.signature(client.connect).parameters),
        "src/penstock/client/client.py",
        "        self._socket = run(\n",
        _BEFORE,
    ),
    "outbox": Area(
        _fields(RelayConfig),
        "src/penstock/outbox/config.py",
        '        check_flag("accept_gap", self.accept_gap)\n',
        _FROZEN,
    ),
    "admin": Area(
        {"timeout": _named(Admin.__init__, ("timeout",))["timeout"]},
        "src/penstock/client/admin/admin.py",
        "        self._timeout = timeout\n        self._socket = socket\n",
        _BEFORE,
    ),
}


def settings() -> list[str]:
    """Every setting that there is, as `area.name`."""
    return [f"{area}.{name}" for area, it in AREAS.items() for name in it.defaults]


def fault(setting: str, tests: tuple[str, ...]) -> Mutant:
    """A product in which this setting always has its default."""
    group, _, name = setting.partition(".")
    area = AREAS[group]
    default = area.defaults[name]
    where = f"self.{name}" if area.reset is _FROZEN else name
    value = f'{where} + "-else"' if default is REQUIRED else repr(default)
    anchor, reset = area.anchor, area.reset
    if setting in EARLY:
        anchor, reset = _EARLY, "        object.__setattr__(self, {name!r}, {value})\n{anchor}"
    return Mutant(
        id=setting,
        area=group,
        says=f"{name} has no effect.",
        file=area.file,
        old=anchor,
        new=reset.format(anchor=anchor, name=name, value=value),
        tests=tests,
    )


def faults() -> list[Mutant]:
    """A fault for each marked test: each of them has to fail alone."""
    return [
        dataclasses.replace(
            fault(setting, (f"tests/{test}",)), id=f"{setting} {test.rpartition('::')[2]}"
        )
        for setting, tests in marked_tests("setting").items()
        for test in tests
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="*", help="part of a setting's name")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=None, help="begin none after these")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"))
    asked = parser.parse_args()
    chosen = [it for it in faults() if not asked.text or any(text in it.id for text in asked.text)]
    report = campaign.run(
        campaign.share(chosen, asked.seed) if asked.seconds else chosen,
        jobs=max(1, min(asked.jobs, len(chosen))),
        tell=lambda line: print(line, flush=True),
        seconds_max=asked.seconds,
        with_baseline=False,
    )
    print(report.table())
    print(*report.complaints, sep="\n")
    return 1 if report.complaints or not report.outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
