"""`penstock verify producer|consumer`: the black-box contract for other people's checkers."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, ExitCode, Guarantee, command
from penstock.core import errors as er

if TYPE_CHECKING:
    from penstock.cli.stopping import Stopper
    from penstock.client.consumer.consumer import Consumer
    from penstock.client.consumer.records import RecordBatch
    from penstock.client.producer.producer import Producer

DELIVERY_TIMEOUT: Final = 30.0
POLL_SECONDS: Final = 5.0

Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC")]
MaxMessages = Annotated[
    int, typer.Option("--max-messages", min=-1, help="-1: until a signal comes.")
]
Partitions = Annotated[
    list[int], typer.Option("-p", "--partition", min=0, help="May be repeated. Default: all.")
]


def make(settings: dict[str, Any]) -> typer.Typer:
    """Makes the command group."""
    app = typer.Typer(
        help="A producer and a consumer that print each event as a JSON line, with the names and "
        "fields of Kafka's VerifiableProducer and VerifiableConsumer.",
        **settings,
    )
    command(app, "producer")(producer)
    command(app, "consumer")(consumer)
    return app


def producer(
    env: Env,
    topic: Topic,
    max_messages: MaxMessages = -1,
    throughput: Annotated[
        float, typer.Option("--throughput", min=-1.0, help="Messages a second; -1: no bound.")
    ] = -1.0,
    acks: Annotated[str, typer.Option("--acks", help="0, 1, all or -1, which is all.")] = "-1",
    value_prefix: Annotated[
        int | None, typer.Option("--value-prefix", help="Values become PREFIX.NUMBER.")
    ] = None,
    repeating_keys: Annotated[
        int | None, typer.Option("--repeating-keys", min=1, help="Keys go from 0 to N-1 in turn.")
    ] = None,
    partitions: Partitions = [],  # noqa: B006 - typer copies it
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", help="Send in transactions, as this id.")
    ] = None,
    transaction_duration: Annotated[
        int, typer.Option("--transaction-duration-ms", min=1, help="How long each is open.")
    ] = 100,
    abort_every: Annotated[
        int, typer.Option("--abort-every", min=0, help="Abort each N-th of them; 0: none.")
    ] = 0,
) -> int:
    """Send the numbers from 0 on, and print the fate of each."""
    from penstock.cli.stopping import Stopper
    from penstock.testing.verify import EventWriter, ProducePlan, VerifiableProducer
    from penstock.testing.verify_transactions import VerifiableTransactions

    levels: dict[str, Any] = {"0": 0, "1": 1, "all": "all", "-1": "all"}
    if acks not in levels:
        raise er.ConfigError(f"--acks {acks!r}: use 0, 1, all or -1")
    timeout = DELIVERY_TIMEOUT if env.given_timeout is None else env.given_timeout
    plan = ProducePlan(
        topic=topic,
        max_messages=None if max_messages < 0 else max_messages,
        throughput=None if throughput < 0 else throughput,
        value_prefix=value_prefix,
        repeating_keys=repeating_keys,
        partitions=tuple(partitions),
    )
    _check_topic(env, topic)
    options: dict[str, Any] = {
        "acks": levels[acks], "delivery_timeout": timeout, "block_timeout": timeout,
    }  # fmt: skip
    with Stopper() as stopper, env.connect() as client:
        sender: Producer
        tool: VerifiableProducer
        if transactional_id is None:
            sender = client.producer(**options)
            tool = VerifiableProducer(
                sender, EventWriter(_write(), stopper), stopper, plan, timeout
            )
        else:
            sender = client.producer(transactional_id=transactional_id, **options)
            tool = VerifiableTransactions(
                sender, EventWriter(_write(), stopper), stopper, plan, timeout,
                duration=transaction_duration / 1000, abort_every=abort_every or None,
            )  # fmt: skip
        tool.run()
    if not tool.failed:
        return ExitCode.DONE
    return ExitCode.PARTLY if tool.acked else ExitCode.FAILED


def consumer(
    env: Env,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option("--group", "--group-id", metavar="GROUP", help="Be a member of this group."),
    ] = None,
    guarantee: Annotated[
        Guarantee, typer.Option("--guarantee", help="Of the group.")
    ] = Guarantee.at_least_once,
    instance_id: Annotated[
        str | None,
        typer.Option("--group-instance-id", metavar="ID", help="Be a static member of the group."),
    ] = None,
    session_timeout: Annotated[
        float, typer.Option("--session-timeout", metavar="SECONDS", help="Of the member.")
    ] = 30.0,
    max_messages: MaxMessages = -1,
    reset_policy: Annotated[
        str, typer.Option("--reset-policy", help="Where to begin: earliest or latest.")
    ] = "earliest",
    partitions: Partitions = [],  # noqa: B006 - typer copies it
) -> int:
    """Read a topic and print what came; with -v each record."""
    from penstock.cli.stopping import Stopper
    from penstock.testing.verify import EventWriter, VerifiableConsumer

    if reset_policy not in ("earliest", "latest"):
        raise er.ConfigError(f"--reset-policy {reset_policy!r}: use earliest or latest")
    if group is not None and partitions:
        raise er.ConfigError("a group gives out its partitions itself: leave --partition out")
    top = None if max_messages < 0 else max_messages
    with Stopper() as stopper, env.connect() as client:
        if group is not None:
            from penstock.testing.verify_group import VerifiableMember

            member: VerifiableMember
            consumer = client.consumer(
                topic, group=group, guarantee=guarantee.value, start=reset_policy,
                instance_id=instance_id, session_timeout=session_timeout, timeout=env.timeout,
                on_assigned=lambda names: member.assigned(names),
                on_revoked=lambda names: member.revoked(names),
                on_lost=lambda names: member.lost(names),
            )  # fmt: skip
            events = EventWriter(_write(), stopper)
            member = VerifiableMember(consumer, events, stopper, top, env.verbose > 0)
            member.run()
            return ExitCode.DONE
        topics = () if partitions else (topic,)
        reader = client.consumer(*topics, start=reset_policy, timeout=env.timeout)
        if partitions:
            reader.assign((topic, number) for number in partitions)
        poll = partial(_poll, reader, stopper)
        events = EventWriter(_write(), stopper)
        VerifiableConsumer(reader, events, poll, top, env.verbose > 0).run()
    return ExitCode.DONE


def _poll(reader: Consumer, stopper: Stopper, left: int | None) -> RecordBatch | None:
    from penstock.cli.stopping import StoppedBySignal

    try:
        with stopper.interruptible():
            return reader.poll(left, timeout=POLL_SECONDS)
    except StoppedBySignal:
        return None


def _check_topic(env: Env, topic: str) -> None:
    """Checks the topic, so that a missing one is one error, and not one a message."""
    with env.admin() as admin:
        admin.describe_topic(topic)


def _write() -> Any:
    """Writes a line whole and at once, past every buffer."""
    descriptor = output.binary().fileno()

    def write(line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
