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
    cluster,
    clusterpartitions,
    compare,
    connections,
    footprint,
    groups,
    latency,
    partitions,
    recovery,
    report,
    spark,
    throughput,
)
from penstock.bench.backlog import BacklogOptions
from penstock.bench.cluster import ClusterOptions
from penstock.bench.clusterpartitions import ClusterPartitionsOptions
from penstock.bench.compare import CompareOptions
from penstock.bench.connections import ConnectionsOptions
from penstock.bench.groups import GroupsOptions
from penstock.bench.options import (
    LatencyOptions,
    Options,
    ThroughputOptions,
    Transport,
    Where,
)
from penstock.bench.partitions import PartitionsOptions
from penstock.bench.progress import Progress
from penstock.bench.recovery import RecoveryOptions
from penstock.bench.spark import SparkOptions
from penstock.core.codecs import CODECS
from penstock.core.errors import PenstockError

Result = dict[str, Any]

EXIT_FAILED = 1
EXIT_TIMEOUT = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run `argv` (without the program's name); returns the exit code."""
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
    """SIGTERM unwinds like an exception, so that what the run made is removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        return signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread
        return None


def _throughput(arguments: argparse.Namespace) -> int:
    options = _options(ThroughputOptions, arguments)
    title = f"{options.api} {options.size} B"
    return _finish(throughput.run(options, Progress(title, quiet=arguments.quiet)), arguments)


def _latency(arguments: argparse.Namespace) -> int:
    options = _options(LatencyOptions, arguments)
    title = f"latency at {options.rate:g}/s"
    return _finish(latency.run(options, Progress(title, quiet=arguments.quiet)), arguments)


def _footprint(arguments: argparse.Namespace) -> int:
    options = footprint.FootprintOptions(
        starts=arguments.starts, idle=arguments.idle, data=arguments.data
    )
    return _finish(footprint.run(options, Progress("footprint", quiet=arguments.quiet)), arguments)


def _partitions(arguments: argparse.Namespace) -> int:
    options = _options(PartitionsOptions, arguments)
    return _finish(
        partitions.run(options, Progress("partitions", quiet=arguments.quiet)), arguments
    )


def _recovery(arguments: argparse.Namespace) -> int:
    options = _options(RecoveryOptions, arguments)
    return _finish(recovery.run(options, Progress("recovery", quiet=arguments.quiet)), arguments)


def _backlog(arguments: argparse.Namespace) -> int:
    options = _options(BacklogOptions, arguments)
    return _finish(backlog.run(options, Progress("backlog", quiet=arguments.quiet)), arguments)


def _groups(arguments: argparse.Namespace) -> int:
    options = _options(GroupsOptions, arguments)
    return _finish(groups.run(options, Progress("groups", quiet=arguments.quiet)), arguments)


def _connections(arguments: argparse.Namespace) -> int:
    options = _options(ConnectionsOptions, arguments)
    title = f"{options.connections} connections"
    return _finish(connections.run(options, Progress(title, quiet=arguments.quiet)), arguments)


def _cluster(arguments: argparse.Namespace) -> int:
    options = _options(ClusterOptions, arguments)
    title = f"{options.brokers} brokers"
    return _finish(cluster.run(options, Progress(title, quiet=arguments.quiet)), arguments)


def _cluster_partitions(arguments: argparse.Namespace) -> int:
    options = _options(ClusterPartitionsOptions, arguments)
    title = f"{options.partitions:,} partitions on {options.brokers} brokers"
    return _finish(
        clusterpartitions.run(options, Progress(title, quiet=arguments.quiet)), arguments
    )


def _compare(arguments: argparse.Namespace) -> int:
    options = _options(CompareOptions, arguments)
    title = f"{options.transport} against {options.against}"
    return _finish(compare.run(options, Progress(title, quiet=arguments.quiet)), arguments)


def _spark(arguments: argparse.Namespace) -> int:
    options = _options(SparkOptions, arguments)
    title = f"Spark, {options.size} B"
    return _finish(spark.run(options, Progress(title, quiet=arguments.quiet)), arguments)


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


def _finish(result: Result, arguments: argparse.Namespace) -> int:
    if arguments.format == "json":
        print(json.dumps(result), flush=True)
    else:
        print(report.as_text(result), flush=True)
    return 0 if report.is_clean(result) else EXIT_FAILED


def _options(kind: type[Any], arguments: argparse.Namespace) -> Any:
    given = vars(arguments)
    return kind(**{name: given[name] for name in kind.__dataclass_fields__ if name in given})


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
    _add_connections(commands)
    _add_cluster(commands)
    _add_cluster_partitions(commands)
    _add_compare(commands)
    _add_spark(commands)
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


def _add_common(parser: Any, defaults: Options) -> None:
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--acks", type=_acks, default=defaults.acks, help="0, 1 or all")
    parser.add_argument("--codec", choices=tuple(CODECS), default=defaults.codec)
    parser.add_argument("--linger", type=float, default=defaults.linger, help="seconds")
    parser.add_argument("--batch-bytes", type=int, default=defaults.batch_bytes)
    parser.add_argument(
        "--durability", choices=("os", "interval", "fsync"), default=defaults.durability,
        help="the topic's",
    )  # fmt: skip
    _add_where(parser, defaults)
    parser.add_argument(
        "--timeout", type=float, default=defaults.timeout, help="seconds for it all"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


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
    parser.add_argument(
        "--writers", type=int, default=None, help="writer processes of the own node"
    )
    parser.add_argument("--brokers", type=int, default=defaults.brokers,
                        help="a cluster of so many instead of one node (0: one node)")  # fmt: skip
    parser.add_argument("--replicas", type=int, default=None, help="of each partition there")


def _add_throughput(commands: Any) -> None:
    text = "records a second, from the first send to the last record checked"
    parser = _command(commands, "throughput", _throughput, text)
    defaults = ThroughputOptions()
    _add_common(parser, defaults)
    parser.add_argument("--records", type=int, default=defaults.records, help="in all")
    parser.add_argument(
        "--api", choices=("send", "batch", "arrow"), default=defaults.api,
        help="a loop over records on both sides, lists and columns, or Arrow tables",
    )  # fmt: skip
    parser.add_argument("--producers", type=int, default=1, help="processes")
    parser.add_argument(
        "--consumers", type=int, default=1, help="processes, sharing the partitions"
    )
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--keys", type=int, default=0, help="different keys (0: none)")
    parser.add_argument("--list-records", type=int, default=0,
                        help="values in one send_batch or table (0: a batch, 1 MiB)")  # fmt: skip
    parser.add_argument(
        "--guarantee", choices=("none", "manual", "at-least-once", "at-most-once"),
        default=defaults.guarantee, help="the consumer is a group's one member",
    )  # fmt: skip
    parser.add_argument("--transaction-records", type=int, default=0,
                        help="records of each transaction (0: none)")  # fmt: skip
    parser.add_argument("--warmup", type=int, default=None, help="records before the clock starts")


def _add_latency(commands: Any) -> None:
    parser = _command(commands, "latency", _latency,
                      "microseconds from when a record is due to when it is iterated")  # fmt: skip
    defaults = LatencyOptions()
    _add_common(parser, defaults)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="records a second")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="measured")
    parser.add_argument("--warmup", type=float, default=defaults.warmup, help="seconds before that")
    parser.add_argument("--spin", type=float, default=defaults.spin,
                        help="seconds of spinning before each record is due (None: 0.0001 through "
                        "shared memory; 0 by TCP, where the producer's process has another thread "
                        "to run)")  # fmt: skip
    parser.add_argument("--poll-spin", type=float, default=defaults.poll_spin,
                        help="seconds that writer and consumer look before they sleep")  # fmt: skip
    parser.add_argument("--acks-latency", action="store_true",
                        help="also from send to acknowledgement")  # fmt: skip


def _add_footprint(commands: Any) -> None:
    parser = _command(commands, "footprint", _footprint,
                      "start-up time, idle CPU and memory of a node")  # fmt: skip
    parser.add_argument("--starts", type=int, default=5, help="starts to take the median of")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch an idle node")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_partitions(commands: Any) -> None:
    text = "what many partitions take: start-up time, memory, descriptors, idle CPU"
    parser = _command(commands, "partitions", _partitions, text)
    defaults = PartitionsOptions()
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--idle", type=float, default=defaults.idle, help="seconds to watch")
    parser.add_argument("--writers", type=int, default=None, help="writer processes")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_recovery(commands: Any) -> None:
    text = "seconds to open a large log, after a clean stop and after a kill"
    parser = _command(commands, "recovery", _recovery, text)
    defaults = RecoveryOptions()
    parser.add_argument("--gb", type=float, default=defaults.gb, help="of the log, 10^9 bytes")
    parser.add_argument(
        "--tail-mb", type=int, default=defaults.tail_mb, help="appended before the kill, 10^6 bytes"
    )
    parser.add_argument("--starts", type=int, default=defaults.starts, help="after a clean stop")
    parser.add_argument("--segment-mb", type=int, default=defaults.segment_mb, help="MiB")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_backlog(commands: Any) -> None:
    text = "throughput with a backlog and without, in pairs"
    parser = _command(commands, "backlog", _backlog, text)
    defaults = BacklogOptions()
    parser.add_argument("--gb", type=float, default=defaults.gb, help="of the backlog, 10^9 bytes")
    parser.add_argument("--records", type=int, default=defaults.records, help="of each turn")
    parser.add_argument("--turns", type=int, default=defaults.turns, help="pairs")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--api", choices=("send", "batch"), default=defaults.api)
    parser.add_argument("--timeout", type=float, default=defaults.timeout, help="seconds of a turn")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_groups(commands: Any) -> None:
    text = "groups: rebalance, failover after a kill, commits a second"
    parser = _command(commands, "groups", _groups, text)
    defaults = GroupsOptions()
    parser.add_argument("--members", type=int, default=defaults.members)
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--processes", type=int, default=defaults.processes, help="of members")
    parser.add_argument("--rate", type=int, default=defaults.rate, help="records a second")
    parser.add_argument("--rounds", type=int, default=defaults.rounds, help="kills")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of commits")
    parser.add_argument("--session-timeout", type=float, default=defaults.session_timeout,
                        help="of members that are killed, in seconds")  # fmt: skip
    _add_where(parser, defaults)
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_connections(commands: Any) -> None:
    text = "many connections: their memory and CPU, records a second, a request among them"
    parser = _command(commands, "connections", _connections, text)
    defaults = ConnectionsOptions()
    parser.add_argument("--connections", type=int, default=defaults.connections)
    parser.add_argument("--processes", type=int, default=defaults.processes, help="that share them")
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="requests a second")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--list-records", type=int, default=defaults.list_records,
                        help="values in one list, where as much is sent as goes")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="of each phase")
    _add_where(parser, defaults)
    parser.add_argument(
        "--timeout", type=float, default=defaults.timeout, help="seconds for it all"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_cluster(commands: Any) -> None:
    text = "a cluster: how long a leader's death is felt, what a follower's return costs"
    parser = _command(commands, "cluster", _cluster, text)
    defaults = ClusterOptions()
    parser.add_argument("--brokers", type=int, default=defaults.brokers)
    parser.add_argument("--writers", type=int, default=None, help="writer processes of each")
    parser.add_argument("--rounds", type=int, default=defaults.rounds, help="kills of a leader")
    parser.add_argument("--mb", type=int, default=defaults.mb, help="to catch up, 10^6 bytes")
    parser.add_argument("--rate", type=int, default=defaults.rate, help="records a second beside")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="before that")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_cluster_partitions(commands: Any) -> None:
    text = "what many partitions take on several brokers: start-up, memory, failover"
    parser = _command(commands, "cluster-partitions", _cluster_partitions, text)
    defaults = ClusterPartitionsOptions()
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--brokers", type=int, default=defaults.brokers)
    parser.add_argument("--idle", type=float, default=defaults.idle, help="seconds to watch")
    parser.add_argument("--writers", type=int, default=None, help="writer processes of each")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_compare(commands: Any) -> None:
    text = "the same throughput by two transports, in pairs"
    parser = _command(commands, "compare", _compare, text)
    defaults = CompareOptions()
    ways = get_args(Transport)
    parser.add_argument("--transport", choices=ways, default=defaults.transport)
    parser.add_argument("--against", choices=ways, default=defaults.against)
    parser.add_argument("--records", type=int, default=defaults.records, help="of each run")
    parser.add_argument("--turns", type=int, default=defaults.turns, help="pairs")
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--api", choices=("send", "batch", "arrow"), default=defaults.api)
    parser.add_argument("--timeout", type=float, default=defaults.timeout, help="seconds of a run")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def _add_spark(commands: Any) -> None:
    text = "Spark reading a topic and writing to one, beside Spark reading Parquet"
    parser = _command(commands, "spark", _spark, text)
    defaults = SparkOptions()
    parser.add_argument("--size", type=int, default=defaults.size, help="bytes of a value")
    parser.add_argument("--records", type=int, default=defaults.records, help="of the topic")
    parser.add_argument("--partitions", type=int, default=defaults.partitions)
    parser.add_argument("--turns", type=int, default=defaults.turns, help="counted, of each query")
    parser.add_argument("--triggers", type=int, default=defaults.triggers,
                        help="small batches of a stream")  # fmt: skip
    parser.add_argument("--rows", type=int, default=defaults.rows, help="records of each of these")
    parser.add_argument("--master", default=defaults.master, help="where Spark runs")
    _add_where(parser, defaults)
    parser.add_argument(
        "--timeout", type=float, default=defaults.timeout, help="seconds for it all"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


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
