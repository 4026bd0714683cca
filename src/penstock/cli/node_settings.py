"""`penstock node config`: the settings of a node that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli import output
from penstock.cli.command import Env
from penstock.cli.serve import read_setting
from penstock.core.errors import ConfigError
from penstock.operations import values

if TYPE_CHECKING:
    from penstock.client.admin.node import SettingInfo, SettingValue


def config(
    env: Env,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME | NAME=VALUE]...",
            help="Describe these settings, or change them; NAME= alone gives one back to what the "
            "node was started with.",
        ),
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="In a cluster: of this broker."),
    ] = None,
) -> None:
    """Show the settings of a node, or change some while it runs; they outlive its restart."""
    names = [word for word in words or () if "=" not in word]
    if names and len(names) < len(words or ()):
        raise ConfigError("describe settings, or change some: not both at once")
    changes: dict[str, SettingValue] = {
        name: read_setting(name, text) if text else None
        for name, text in values.assignments([] if names else words or []).items()
    }
    with env.admin() as admin:
        if changes:
            changed = admin.alter_settings(changes, broker=broker)
            env.say(f"in use, and kept: {', '.join(f'{one.name}={_told(one)}' for one in changed)}")
            return
        found = admin.list_settings(broker)
    wanted = [name.replace("-", "_") for name in names]
    known = {one.name for one in found}
    if missing := [name for name in wanted if name not in known]:
        raise ConfigError(
            f"a node has no setting {missing[0]!r}: `penstock node config` lists them"
        )
    _write(env, [one for one in found if not wanted or one.name in wanted], bool(wanted))


def _write(env: Env, found: list[SettingInfo], is_described: bool) -> None:
    if env.is_json:
        for one in found:
            output.write_json(msgspec.structs.asdict(one))
        return
    heads = ["SETTING", "VALUE", "FROM", "CHANGES"]
    rows = [[one.name, _told(one), one.source, _when(one)] for one in found]
    if env.is_wide or is_described:
        heads += ["DEFAULT", "ALLOWED"]
        for row, one in zip(rows, found, strict=True):
            row += ["-" if one.default is None else str(one.default), one.allowed or "-"]
    output.write_columns(heads, rows)


def _when(one: SettingInfo) -> str:
    return "live" if one.is_live else "restart"


def _told(one: SettingInfo) -> str:
    return "-" if one.value is None else str(one.value)
