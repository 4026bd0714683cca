"""`penstock cluster ...`: describe, health, elect, reassign, drain, remove."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import output
from penstock.cli.asking import confirm
from penstock.cli.command import Env, ExitCode, command
from penstock.cli.describe import numbers
from penstock.cli.progress import ProgressBar
from penstock.core import errors as er
from penstock.operations import values, wording
from penstock.operations.cluster_health import summary, troubles

if TYPE_CHECKING:
    from penstock.client.admin.admin import (
        ClusterDescription,
        DrainStatus,
        PartitionPlace,
        UncleanRecovery,
    )
    from penstock.client.admin.cluster import BrokerInfo

ALL: Final = "all"
LOOK_EVERY: Final = 0.2
"""Seconds between two looks how far a drain is."""
_PLACES = ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "target", "offline")


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(help="Show and change a cluster: who leads what, and where.", **settings)
    command(app, "describe")(describe)
    command(app, "health")(health)
    command(app, "elect")(elect)
    command(app, "reassign")(reassign)
    command(app, "drain")(drain)
    command(app, "remove")(remove)
    return app


def describe(
    env: Env,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only where its partitions are.")
    ] = None,
) -> None:
    """Show the brokers, the controller's quorum, and the partitions that are not well."""
    with env.admin() as admin:
        if topic is not None:
            _write_places(env, admin.describe_partitions(topic))
            return
        found = admin.describe_cluster()
    if env.is_json:
        output.write_json(_fields(found))
        return
    output.write_line(
        f"cluster {found.cluster_id.hex()}  controller {_broker(found.controller)} in term "
        f"{found.term}  seen by broker {found.broker}"
    )
    when = "" if found.controller >= 0 else "as it was while there was a controller: "
    output.write_line(
        f"  {when}{wording.counted(found.topics, 'topic')}, "
        f"{wording.counted(found.partitions, 'partition')}: {summary(found)}"
    )
    output.write_columns(
        ["BROKER", "STATE", "EPOCH", "LEADS", "REPLICAS", "IN-SYNC", "RACK", "URL"],
        [
            [each.broker, _state(found, each), each.epoch, each.leads, each.replicas, each.in_sync,
             each.rack or "-", each.url]
            for each in found.brokers
        ],
    )  # fmt: skip
    output.write_columns(
        ["QUORUM", "ROLE", "BEHIND", "TROUBLE"],
        [
            [each.node, each.role, "-" if each.behind < 0 else each.behind, each.trouble or "-"]
            for each in found.quorum
        ],
    )
    _write_ill(found)
    _write_unclean(found.unclean, found.unclean_partitions)


def health(env: Env) -> int:
    """Say whether all is well, by the exit status too: 0, or 1 with what is not."""
    with env.admin() as admin:
        found = admin.describe_cluster()
    said = troubles(found)
    if env.is_json:
        output.write_json({"healthy": not said, "troubles": said, **_fields(found)})
    elif not said:
        output.write_line(
            f"all is well: {wording.counted(len(found.brokers), 'broker')}, "
            f"{wording.counted(found.partitions, 'partition')}, all replicas in sync"
        )
    else:
        for trouble in said:
            output.write_line(trouble)
        _write_ill(found)
    if not env.is_json:
        _write_unclean(found.unclean, found.unclean_partitions)
        for each in found.brokers:
            if each.broker in found.drained:
                output.write_line(
                    f"broker {each.broker} is drained for maintenance, and leads "
                    f"{wording.counted(each.leads, 'partition')}"
                )
    return ExitCode.FAILED if said else ExitCode.DONE


def elect(
    env: Env,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only of this topic; none: of all.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", min=0, help="Only this one of the topic.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Where no in-sync replica is up, let any replica lead: what it lacks is lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Let each partition be led by its first replica, so that brokers lead equally many."""
    if unclean and topic is None:
        raise er.ConfigError("--unclean loses records: name the TOPIC that may")
    if unclean and not yes:
        confirm(
            f"Records of {topic} that only brokers have which are away are lost. Go on?",
            tries=False,
        )
    with env.admin() as admin:
        changed = admin.elect_leaders(topic, partition, unclean=unclean)
    lost = ": what it does not have is lost" if unclean and changed else ""
    env.say(f"{wording.counted(changed, 'partition')} got another leader{lost}")


def reassign(
    env: Env,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        str, typer.Argument(metavar="[PARTITION]", help="Its number, or all of the topic.")
    ] = ALL,
    brokers: Annotated[
        str | None,
        typer.Argument(
            metavar="[BROKERS]",
            help="Like 2,3,4: the preferred leader comes first; of all partitions, each in turn.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            min=1,
            help="Instead of BROKERS: so many replicas, the present ones among them.",
        ),
    ] = None,
) -> None:
    """Give partitions other replicas, or more or fewer of them: those that are new catch up first,
    then the others let go."""
    if (brokers is None) == (replication_factor is None):
        raise er.ConfigError("name the BROKERS, or say how many by --replication-factor")
    replicas = None if brokers is None else _brokers(brokers)
    number = None if partition == ALL else _partition(partition)
    with env.admin() as admin:
        if number is None:
            admin.reassign_topic(topic, replicas, replication_factor=replication_factor)
        else:
            admin.reassign_partition(topic, number, replicas, replication_factor=replication_factor)
    what = topic if number is None else f"{topic}-{number}"
    to = brokers or wording.counted(replication_factor or 0, "replica")
    env.say(
        f"{what} moves to {to}: `penstock cluster describe {topic}` shows targets until then, and "
        "`penstock cluster health` says when all replicas are in sync"
    )


def remove(
    env: Env,
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=1)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Take a broker that is stopped for good out of the quorum, and off the list if it has no
    replicas."""
    if not yes:
        confirm(f"Take broker {broker} out of the cluster's quorum for good?", tries=False)
    with env.admin() as admin:
        admin.remove_broker(broker)
    env.say(f"broker {broker} is out of the quorum")


def drain(
    env: Env,
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=1, max=65_535)],
    undo: Annotated[bool, typer.Option("--undo", help="Let it lead again.")] = False,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait until it leads nothing.")
    ] = "30s",
) -> int:
    """Let other in-sync replicas lead a broker's partitions, before maintenance, and keep it so
    until it comes back from its restart, or --undo."""
    until = time.monotonic() + values.seconds(wait)
    with env.admin() as admin:
        found = admin.drain_broker(broker, undo=undo)
        if undo:
            env.say(
                f"broker {broker} may lead again: partitions come back to it by themselves "
                "(leader_balance_interval), or at once by `penstock cluster elect`"
            )
            return ExitCode.DONE
        before = found.leads
        with ProgressBar(env, "partitions", before) as progress:
            while not found.is_drained or (found.leads and not _is_hopeless(found)):
                if time.monotonic() >= until:
                    break
                time.sleep(LOOK_EVERY)
                found = admin.describe_drain(broker)
                progress.at(before - found.leads)
    if env.is_json:
        output.write_json(msgspec.structs.asdict(found))
    elif found.leads:
        for place in found.stuck:
            output.write_line(_why_stuck(place))
        if found.stuck_partitions > len(found.stuck):
            output.write_line(f"and {found.stuck_partitions - len(found.stuck)} more")
    if not found.is_drained:
        env.say(f"broker {broker} is drained no more: it came back from a restart, or by --undo")
        return ExitCode.PARTLY
    if not found.leads:
        env.say(f"broker {broker} leads nothing: stop it, or --undo")
        return ExitCode.DONE
    env.say(
        f"broker {broker} still leads {wording.counted(found.leads, 'partition')}, of which nobody "
        f"else could lead {found.stuck_partitions}. The drain goes on: each moves once another "
        "replica of it is in sync"
    )
    return ExitCode.PARTLY


def _is_hopeless(found: DrainStatus) -> bool:
    """Returns whether waiting brings nothing: the partitions left have no other replica at all."""
    is_all_shown = found.stuck_partitions == len(found.stuck) == found.leads
    return is_all_shown and all(len(place.replicas) == 1 for place in found.stuck)


def _why_stuck(place: PartitionPlace) -> str:
    name = f"{place.topic}-{place.partition}"
    if len(place.replicas) == 1:
        return (
            f"{name} has no other replica: `penstock cluster reassign {place.topic} "
            f"{place.partition} --replication-factor 2`, or it is away with its broker"
        )
    others = [broker for broker in place.replicas if broker != place.leader]
    in_sync = [broker for broker in place.isr if broker != place.leader]
    if not in_sync:
        return f"{name}: none of its other replicas ({numbers(others)}) is in sync"
    return (
        f"{name}: its other replicas in sync ({numbers(in_sync)}) are down, drained too, or their "
        "logs are offline"
    )


def _state(found: ClusterDescription, each: BrokerInfo) -> str:
    is_drained = each.broker in found.drained and each.state == "up"
    return "drained" if is_drained else each.state


def _partition(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise er.ConfigError(f"{text!r} is no partition: write its number, or {ALL}")
    return int(text)


def _brokers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise er.ConfigError(f"{text!r} are no brokers: write their numbers, like 2,3,4") from None


def _broker(number: int) -> str:
    return "none" if number < 0 else str(number)


def _fields(found: ClusterDescription) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "cluster_id": found.cluster_id.hex()}


def _write_ill(found: ClusterDescription) -> None:
    if found.ill:
        _write_rows(found.ill)
    if found.ill_partitions > len(found.ill):
        output.write_line(f"and {found.ill_partitions - len(found.ill)} more")


def _write_places(env: Env, places: list[PartitionPlace]) -> None:
    if env.is_json:
        for place in places:
            output.write_json(msgspec.structs.asdict(place))
    else:
        _write_rows(places)
        unclean = [place for place in places if place.unclean is not None]
        _write_unclean(unclean, len(unclean))


def _write_unclean(places: list[PartitionPlace], count: int) -> None:
    """Writes the partitions that go on after an unclean election, and may miss records."""
    for place in places:
        if place.unclean is not None:
            output.write_line(_missing(place, place.unclean))
    if count > len(places):
        output.write_line(f"and {count - len(places)} more that may miss records")


def _missing(place: PartitionPlace, it: UncleanRecovery) -> str:
    first = "some offset" if it.first < 0 else f"offset {it.first}"
    known = f" (offsets to {it.known_end - 1} were in use)" if it.known_end > it.first else ""
    return (
        f"{place.topic}-{place.partition} may miss what was committed from {first} on{known}: "
        f"broker {it.leader} was elected in epoch {it.leader_epoch} without a clean replica, "
        f"{wording.iso_time(int(it.at * 1e6))}"
    )


def _write_rows(places: list[PartitionPlace]) -> None:
    heads = [head.upper().replace("_", "-") for head in _PLACES]
    output.write_columns(heads, [_row(place) for place in places])


def _row(place: PartitionPlace) -> list[object]:
    return [
        place.topic, place.partition, "-" if place.leader < 0 else place.leader,
        place.leader_epoch, numbers(place.replicas), numbers(place.isr), numbers(place.target),
        numbers(place.offline),
    ]  # fmt: skip
