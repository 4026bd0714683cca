"""`penstock bench throughput | latency | ... | suite`: arguments in, one result out.

Results go to stdout (`--format json`: one object a line), everything else to stderr. Exit code 0:
done; 1: failed, or records were lost, doubled or out of order; 2: wrong usage; 3: timeout.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from penstock.bench import (
    backlog,
    celeryqueue,
    cluster,
    clusterpartitions,
    commits,
    compare,
    connections,
    delayed,
    footprint,
    groups,
    kafkajars,
    latency,
    partitions,
    peers,
    queuepage,
    queues,
    recovery,
    redelivery,
    report,
    scale,
    scalepage,
    spark,
    throughput,
)
from penstock.bench.backlog import BacklogOptions
from penstock.bench.celeryqueue import CeleryOptions
from penstock.bench.cluster import ClusterOptions
from penstock.bench.clusterpartitions import ClusterPartitionsOptions
from penstock.bench.commits import CommitsOptions
from penstock.bench.compare import CompareOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.delayed import DelayedOptions
from penstock.bench.footprint import FootprintOptions
from penstock.bench.groups import GroupsOptions
from penstock.bench.options import (
    LatencyOptions,
    Options,
    ThroughputOptions,
    Transport,
    Where,
)
from penstock.bench.partitions import PartitionsOptions
from penstock.bench.peers import PeersOptions
from penstock.bench.progress import BenchProgress
from penstock.bench.queues import QueueOptions
from penstock.bench.recovery import RecoveryOptions
from penstock.bench.redelivery import RedeliveryOptions
from penstock.bench.scale import ScaleOptions
from penstock.bench.sparktopics import SparkOptions
from penstock.core.codecs import CODECS
from penstock.core.errors import PenstockError

Result = dict[str, Any]

EXIT_FAILED = 1
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Runs `argv` (without the program's name); returns the exit code."""
    arguments = _parser().parse_args(list(argv))
    before = _terminate_like_exit()
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except KeyboardInterrupt:
        print("penstock bench: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (PenstockError, OSError) as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        return EXIT_TIMEOUT if isinstance(error, TimeoutError) else EXIT_FAILED
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _terminate_like_exit() -> Any:
    """Makes SIGTERM unwind like an exception, so that what the run made is removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        return signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread
        return None


def _measuring(
    run: Callable[[Any, BenchProgress], Result], kind: type[Any], title: str
) -> Callable[[argparse.Namespace], int]:
    """Returns the function of a command that measures. `title` may name options of that kind."""

    def measure(arguments: argparse.Namespace) -> int:
        given = vars(arguments)
        options = kind(**{name: given[name] for name in kind.__dataclass_fields__ if name in given})
        progress = BenchProgress(title.format(options=options), quiet=arguments.quiet)
        return _finish(run(options, progress), arguments)

    return measure


def _plots(arguments: argparse.Namespace) -> int:
    from penstock.bench import curves

    return curves.run(
        arguments.output,
        data=arguments.data,
        quick=arguments.quick,
        only=arguments.only,
        redraw=arguments.redraw,
        quiet=arguments.quiet,
    )


def _suite(arguments: argparse.Namespace) -> int:
    from penstock.bench import suite

    return suite.run(
        arguments.output,
        data=arguments.data,
        repeat=arguments.repeat,
        quick=arguments.quick,
        only=arguments.only,
        page=arguments.page,
        quiet=arguments.quiet,
    )


def _queue_page(arguments: argparse.Namespace) -> int:
    delayed = [queuepage.read(file, "delayed") for file in arguments.delayed]
    arguments.output.write_text(queuepage.as_page(queuepage.read(arguments.result), delayed))
    return 0


def _scale_page(arguments: argparse.Namespace) -> int:
    scalepage.write(arguments.results, arguments.notes, arguments.output)
    return 0


def _peers_page(arguments: argparse.Namespace) -> int:
    from penstock.bench import peerspage

    peerspage.write(arguments.results, arguments.output)
    return 0


def _finish(result: Result, arguments: argparse.Namespace) -> int:
    if arguments.format == "json":
        print(json.dumps(result), flush=True)
    else:
        print(report.as_text(result), flush=True)
    return 0 if report.is_clean(result) else EXIT_FAILED


# --- arguments ----------------------------------------------------------------------------------
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench",
        description="Measure Penstock on this machine. Without --bootstrap a run starts a node of "
        "its own in a temporary folder (of --data, or $TMPDIR) and removes it again.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_throughput(commands)
    _add_latency(commands)
    _add_footprint(commands)
    _add_partitions(commands)
    _add_recovery(commands)
    _add_backlog(commands)
    _add_groups(commands)
    _add_commits(commands)
    _add_redelivery(commands)
    _add_delayed(commands)
    _add_connections(commands)
    _add_cluster(commands)
    _add_cluster_partitions(commands)
    _add_compare(commands)
    _add_spark(commands)
    _add_queue(commands)
    _add_celery(commands)
    _add_queue_page(commands)
    _add_peers(commands)
    _add_peers_page(commands)
    _add_scale(commands)
    _add_scale_page(commands)
    _add_plots(commands)
    _add_suite(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], text: str) -> Any:
    parser = commands.add_parser(
        name, help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.set_defaults(run=run)
    parser.add_argument("--data", type=Path, default=None, help="folder for the run's own node")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    return parser


def _measurement(
    commands: Any, name: str, run: Callable[[Any, BenchProgress], Result], defaults: Any,
    title: str, text: str, **fields: str,
) -> Any:  # fmt: skip
    """Adds a command that measures, with these of its options; see `_measuring` and `_add`."""
    parser = _command(commands, name, _measuring(run, type(defaults), title), text)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    _add(parser, defaults, **fields)
    return parser


def _add(parser: Any, defaults: Any, **fields: str) -> None:
    """Adds an option for each of these fields, of its type and with its default. The text is its
    help (empty: none). A field that is None by default is a number of processes."""
    for name, text in fields.items():
        value = getattr(defaults, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int if value is None else type(value),
            default=value, help=text or None,
        )  # fmt: skip


def _add_api(parser: Any, defaults: Any, *, arrow: bool = True, text: str | None = None) -> None:
    choices = ("send", "batch", "arrow") if arrow else ("send", "batch")
    parser.add_argument("--api", choices=choices, default=defaults.api, help=text)


def _add_common(parser: Any, defaults: Options) -> None:
    _add(
        parser, defaults, size="bytes of a value", linger="seconds", batch_bytes="",
        timeout="seconds for it all",
    )  # fmt: skip
    parser.add_argument("--acks", type=_acks, default=defaults.acks, help="0, 1 or all")
    parser.add_argument("--codec", choices=tuple(CODECS), default=defaults.codec)
    parser.add_argument(
        "--durability", choices=("os", "interval", "fsync"), default=defaults.durability,
        help="the topic's",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_where(parser: Any, defaults: Where) -> None:
    parser.add_argument(
        "-b", "--bootstrap", default=None,
        help="URL of a node that runs already; tcp:// is measured by TCP on its own host too",
    )  # fmt: skip
    parser.add_argument(
        "--key-file", type=Path, default=None, help="the client's key for that node"
    )
    parser.add_argument(
        "--transport", choices=get_args(Transport), default=defaults.transport,
        help="how to reach the own node: shared memory, TCP, or TCP with keys",
    )  # fmt: skip
    _add(
        parser, defaults, writers="writer processes of the own node",
        brokers="a cluster of so many instead of one node (0: one node)",
        replicas="of each partition there",
    )  # fmt: skip


def _add_throughput(commands: Any) -> None:
    defaults = ThroughputOptions()
    parser = _measurement(
        commands, "throughput", throughput.run, defaults, "{options.api} {options.size} B",
        "records a second, from the first send to the last record checked",
        records="in all", producers="processes", consumers="processes, sharing the partitions",
        partitions="", keys="different keys (0: none)",
        list_records="values in one send_batch or table (0: a batch, 1 MiB)",
        transaction_records="records of each transaction (0: none)",
        warmup="records before the clock starts",
    )  # fmt: skip
    _add_common(parser, defaults)
    _add_api(
        parser, defaults,
        text="a loop over records on both sides, lists and columns, or Arrow tables",
    )  # fmt: skip
    parser.add_argument(
        "--guarantee", choices=("none", "manual", "at-least-once", "at-most-once"),
        default=defaults.guarantee, help="the consumer is a group's one member",
    )  # fmt: skip


def _add_latency(commands: Any) -> None:
    defaults = LatencyOptions()
    parser = _measurement(
        commands, "latency", latency.run, defaults, "latency at {options.rate:g}/s",
        "microseconds from when a record is due to when it is iterated",
        rate="records a second", seconds="measured", warmup="seconds before that",
        poll_spin="seconds that writer and consumer look before they sleep",
    )  # fmt: skip
    _add_common(parser, defaults)
    parser.add_argument("--spin", type=float, default=defaults.spin,
                        help="seconds of spinning before each record is due (None: 0.0001 through "
                        "shared memory; 0 by TCP, where the producer's process has another thread "
                        "to run)")  # fmt: skip
    parser.add_argument("--acks-latency", action="store_true",
                        help="also from send to acknowledgement")  # fmt: skip


def _add_footprint(commands: Any) -> None:
    _measurement(
        commands, "footprint", footprint.run, FootprintOptions(), "footprint",
        "start-up time, idle CPU and memory of a node",
        starts="starts to take the median of", idle="seconds to watch an idle node",
    )  # fmt: skip


def _add_partitions(commands: Any) -> None:
    _measurement(
        commands, "partitions", partitions.run, PartitionsOptions(), "partitions",
        "what many partitions take: start-up time, memory, descriptors, idle CPU",
        partitions="", idle="seconds to watch", writers="writer processes",
    )  # fmt: skip


def _add_recovery(commands: Any) -> None:
    _measurement(
        commands, "recovery", recovery.run, RecoveryOptions(), "recovery",
        "seconds to open a large log, after a clean stop and after a kill",
        gb="of the log, 10^9 bytes", tail_mb="appended before the kill, 10^6 bytes",
        starts="after a clean stop", segment_mb="MiB",
    )  # fmt: skip


def _add_backlog(commands: Any) -> None:
    defaults = BacklogOptions()
    parser = _measurement(
        commands, "backlog", backlog.run, defaults, "backlog",
        "throughput with a backlog and without, in pairs",
        gb="of the backlog, 10^9 bytes", records="of each turn", turns="pairs",
        size="bytes of a value", timeout="seconds of a turn",
    )  # fmt: skip
    _add_api(parser, defaults, arrow=False)


def _add_groups(commands: Any) -> None:
    defaults = GroupsOptions()
    parser = _measurement(
        commands, "groups", groups.run, defaults, "groups",
        "groups: rebalance, failover after a kill, commits a second",
        members="", partitions="", processes="of members", rate="records a second",
        rounds="kills", seconds="of commits",
        session_timeout="of members that are killed, in seconds",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_commits(commands: Any) -> None:
    defaults = CommitsOptions()
    parser = _measurement(
        commands, "commits", commits.run, defaults, "{options.clients} clients",
        "commits, claims or transactions of one record a second, of clients side by side",
        clients="processes", partitions="of transactions", seconds="measured",
    )  # fmt: skip
    parser.add_argument("--kind", choices=commits.KINDS, default=defaults.kind)
    parser.add_argument(
        "--durability", choices=("appended", "fsynced"), default=defaults.durability,
        help="of transactions",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_redelivery(commands: Any) -> None:
    defaults = RedeliveryOptions()
    parser = _measurement(
        commands, "redelivery", redelivery.run, defaults, "redelivery",
        "work queues: how soon the job of a killed worker goes on elsewhere",
        kills="of workers",
        session_timeout="of workers, in seconds: by TCP a killed one is missed for so long",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_delayed(commands: Any) -> None:
    defaults = DelayedOptions()
    parser = _measurement(
        commands, "delayed", delayed.run, defaults, "{options.records:,} delayed records",
        "work queues: how late records come that wait for their time, and what waiting costs",
        records="that wait", rate="records that become due a second", size="bytes of a value",
        workers="processes", order="in which they become due: random or sent",
        lead="seconds for sending them all and looking them through",
        idle="seconds for which nothing is due, and the CPU is measured",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_connections(commands: Any) -> None:
    defaults = ConnectionsOptions()
    parser = _measurement(
        commands, "connections", connections.run, defaults, "{options.connections} connections",
        "many connections: their memory and CPU, records a second, a request among them",
        connections="", processes="that share them", partitions="", rate="requests a second",
        size="bytes of a value",
        list_records="values in one list, where as much is sent as goes",
        seconds="of each phase", timeout="seconds for it all",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_cluster(commands: Any) -> None:
    _measurement(
        commands, "cluster", cluster.run, ClusterOptions(), "{options.brokers} brokers",
        "a cluster: how long a leader's death is felt, what a follower's return costs",
        brokers="", writers="writer processes of each",
        rounds="kills of a leader, and as many of one that is the controller, too",
        mb="to catch up, 10^6 bytes", rate="records a second beside", size="bytes of a value",
        seconds="before that",
    )  # fmt: skip


def _add_cluster_partitions(commands: Any) -> None:
    _measurement(
        commands, "cluster-partitions", clusterpartitions.run, ClusterPartitionsOptions(),
        "{options.partitions:,} partitions on {options.brokers} brokers",
        "what many partitions take on several brokers: start-up, memory, failover",
        partitions="", brokers="", idle="seconds to watch", writers="writer processes of each",
    )  # fmt: skip


def _add_compare(commands: Any) -> None:
    defaults = CompareOptions()
    parser = _measurement(
        commands, "compare", compare.run, defaults, "{options.transport} against {options.against}",
        "the same throughput by two transports, in pairs",
        records="of each run", turns="pairs", size="bytes of a value", timeout="seconds of a run",
    )  # fmt: skip
    ways = get_args(Transport)
    parser.add_argument("--transport", choices=ways, default=defaults.transport)
    parser.add_argument("--against", choices=ways, default=defaults.against)
    _add_api(parser, defaults)


def _add_spark(commands: Any) -> None:
    defaults = SparkOptions()
    parser = _measurement(
        commands, "spark", spark.run, defaults, "Spark, {options.size} B",
        "Spark reading a topic and writing to one, beside Spark reading Parquet",
        size="bytes of a value", records="of the topic", partitions="",
        turns="counted, of each query", triggers="small batches of a stream",
        rows="records of each of these", master="where Spark runs", timeout="seconds for it all",
    )  # fmt: skip
    _add_where(parser, defaults)


def _add_queue(commands: Any) -> None:
    parser = _measurement(
        commands, "queue", queues.run, QueueOptions(), "work queues",
        "jobs a second of a share group and of other work queues, each with a server of this run; "
        "what is missing here is left out, with the reason",
        jobs="of a turn; some queues are given a share or a multiple", size="bytes of a job",
        workers="processes", turns="the median counts", tries="workers that are killed, each "
        "holding a job", wait="seconds for that job to reach another worker",
        only="the queue of this key, or those whose key contains it",
        timeout="seconds for the jobs of one queue",
    )  # fmt: skip
    parser.add_argument("--kafka", type=Path, default=None, help="folder of Kafka's jars")


def _add_celery(commands: Any) -> None:
    _measurement(
        commands, "celery", celeryqueue.run, CeleryOptions(), "Celery",
        "tasks a second of Celery on Penstock and on other brokers, each with a server of this "
        "run; what is missing here is left out, with the reason",
        tasks="of a turn", singles="tasks that are timed one by one", turns="of each broker",
        processes="of a worker's pool", kills="workers that are killed, each with a task",
        wait="seconds for that task to begin elsewhere",
        idle="seconds for which a worker waits, and its CPU is measured",
        only="the brokers whose key contains it",
    )  # fmt: skip


def _add_queue_page(commands: Any) -> None:
    text = "write the page of figures from a result of `queue --format json`"
    parser = commands.add_parser("queue-page", help=text, description=text)
    parser.set_defaults(run=_queue_page)
    parser.add_argument("result", type=Path, help="the file of that result")
    parser.add_argument(
        "--delayed", type=Path, nargs="*", default=[], metavar="FILE",
        help="results of `delayed --format json`, for a section of their own",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks/queue.md"))


def _add_peers(commands: Any) -> None:
    parser = _measurement(
        commands, "peers", peers.run, PeersOptions(), "peers",
        "Penstock beside Kafka, Redis, NATS and RabbitMQ from Python, in turns, each with a server "
        "of this run or one that is named; what is missing here is left out, with the reason",
        work=f"one of {', '.join(peers.WORK)} (empty: all)",
        records="of a turn of throughput; some peers are given a share or a multiple",
        rate="records a second of latency", seconds="of a turn of latency",
        warmup="seconds before that", jobs="of a turn of the work queues",
        turns="the median counts",
        only="the peers whose key contains it",
        **dict.fromkeys(peers.SERVERS, "HOST:PORT of one that runs already"),
        timeout="seconds for a turn of one peer",
    )  # fmt: skip
    parser.add_argument(
        "--jars", type=Path, default=None,
        help=f"folder of Kafka's jars (None: {kafkajars.cache()}, fetched by Maven)",
    )  # fmt: skip


def _add_peers_page(commands: Any) -> None:
    text = "write the page and draw the plot of results of `peers --format json`"
    parser = commands.add_parser("peers-page", help=text, description=text)
    parser.set_defaults(run=_peers_page)
    parser.add_argument("results", type=Path, nargs="+", help="files; each may have other work")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks/peers.md"))


def _add_scale(commands: Any) -> None:
    parser = _measurement(
        commands, "scale", scale.run, ScaleOptions(), "scale",
        "curves of producers, consumers, partitions, connections, bytes of a record and backlog, "
        "each point in turns, with what its processes used",
        only="curves whose key contains it, or a line of one, as partitions/small",
        at="the point at this x alone (0: all)", turns="of each point, the median counts",
        records="of 1 KB in a turn", seconds="of each phase of connections",
        gb="of the longest backlog, 10^9 bytes", timeout="seconds for a turn",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="few points, a tenth of the records, one turn"
    )


def _add_scale_page(commands: Any) -> None:
    text = "write the page and draw the plots of results of `scale --format json`"
    parser = commands.add_parser("scale-page", help=text, description=text)
    parser.set_defaults(run=_scale_page)
    parser.add_argument(
        "results", type=Path, nargs="+", help="files; turns of one point are put together"
    )
    parser.add_argument(
        "--notes", type=Path, default=None, help="TOML: what profiles of the bends say, by curve"
    )
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks/scale.md"))


def _add_plots(commands: Any) -> None:
    parser = _command(commands, "plots", _plots, "curves, drawn as PNG files")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks"), help="folder")
    parser.add_argument("--quick", action="store_true", help="fewer points of a tenth of the size")
    parser.add_argument("--only", default="", help="plots whose name contains this")
    parser.add_argument(
        "--redraw", action="store_true", help="from the last points, without measuring"
    )


def _add_suite(commands: Any) -> None:
    parser = _command(
        commands, "suite", _suite, "the whole set, written as a Markdown table, and the plots"
    )
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks"), help="folder")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, the median counts")
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, one run each")
    parser.add_argument("--only", default="", help="rows whose name contains this, unwritten")
    parser.add_argument(
        "--page", default="",
        help="one page: README.md, groups.md, remote.md, cluster.md or spark.md",
    )  # fmt: skip


def _acks(text: str) -> int | str:
    if text not in ("0", "1", "all"):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0, 1 or all")
    return text if text == "all" else int(text)
