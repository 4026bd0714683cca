"""`penstock doctor`: looks at everything, says what is wrong and what to do."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, command
from penstock.operations import wording


def add_to(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(
    env: Env,
    json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
) -> int:
    """Look at node, host, cluster and groups, and say what is wrong and what to do.

    Exit status 0 where nothing is wrong, else 1."""
    from penstock.cli.diagnosis import diagnose

    found = diagnose(env)
    if json or env.is_json:
        output.write_json({"healthy": found.is_well, **msgspec.structs.asdict(found)})
    else:
        for each in sorted(found.findings, key=lambda each: not each.is_wrong):
            mark = "wrong" if each.is_wrong else "note "
            output.write_line(f"{mark}  {each.subject}: {each.what}")
            output.write_line(f"       do: {each.advice}")
        wrong = sum(each.is_wrong for each in found.findings)
        said = f"{wording.counted(wrong, 'thing')} wrong" if wrong else "nothing is wrong"
        output.write_line(f"{said}; looked at {', '.join(found.looked_at) or 'the host alone'}")
    return ExitCode.DONE if found.is_well else ExitCode.FAILED
