"""`penstock group scale`: how many members a lag target needs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.command import Env


def scale(
    env: Env,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    lag: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Lag that may stay.")] = 60.0,
    within: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="In which the rest is to be gone.")
    ] = 600.0,
    sample: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, max=60, help="For which it is watched.")
    ] = 5.0,
) -> None:
    """Show how many members a lag target needs, by what they do now. Changes nothing."""
    with env.admin() as admin:
        found = admin.scale_group(group, lag_seconds=lag, within=within, sample=sample)
    if env.is_json:
        output.write_json(asdict(found))
        return
    wanted = "unknown" if found.members is None else str(found.members)
    output.write_line(f"{group}: {wanted} members (now {found.members_now}): {found.reason}")
