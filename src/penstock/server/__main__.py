"""`python -m penstock.server`: a node from a lean command line, for supervisors and tests.

`penstock serve` is the same node with the full command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from penstock.core.errors import ConfigError
from penstock.ipc.paths import DEFAULT_NODE, default_data_folder
from penstock.server.config import NodeConfig
from penstock.server.node.log_format import FORMAT_VARIABLE, FORMATS
from penstock.server.node.main import Starter, configure_logging, serve

_OPTIONS = {
    "--lane-capacity": (int, "bytes of frames in a lane"),
    "--lanes-max": (int, "most lanes"),
    "--clients-max": (int, "most attached clients"),
    "--partitions-max": (int, "most partitions of all topics"),
    "--topics-max": (int, "most topics"),
    "--writer-stall-timeout": (float, "seconds after which a silent writer is replaced"),
    "--drain-timeout": (float, "seconds for draining at start and at a clean stop"),
    "--coordinator-timeout": (float, "seconds for a request of a group or a transaction"),
    "--stall-timeout": (float, "seconds for which a member's process may be stopped"),
    "--offsets-retention": (float, "seconds for which groups without members keep offsets"),
    "--stage-timeout": (float, "seconds for which a stage waits for its commit"),
    "--cleaner-interval": (float, "seconds between two looks at retention and compaction"),
    "--cleaner-rate": (int, "bytes a second that compaction reads and writes"),
    "--disk-warn": (float, "room below which to warn, a share of the disk or bytes"),
    "--disk-stop": (float, "room below which nothing is appended"),
    "--writer-spin": (float, "seconds that writers look for records before they sleep"),
    "--metrics": (str, "HOST:PORT where metrics and health are served"),
    "--lock-timeout": (float, "seconds to wait for the data folder's lock"),
    "--listen": (str, "serve clients on other hosts at tcp://ADDRESS:PORT"),
    "--connections-max": (int, "most connections of remote clients"),
    "--client-window": (int, "bytes under way from a remote producer to a writer"),
    "--client-bytes-max": (int, "bytes held for one remote connection"),
    "--principal-bytes-max": (int, "bytes held for the connections of one principal"),
    "--client-heartbeat": (float, "seconds between signs of life of a remote client"),
    "--client-silence-max": (float, "seconds of silence that end a remote connection"),
    "--client-absence-max": (float, "seconds until a remote client that is away counts as dead"),
    "--node-id": (int, "the number of this broker in its cluster"),
    "--cluster-listen": (str, "where other brokers reach this one, tcp://ADDRESS:PORT"),
    "--controller-quorum": (str, "the brokers that decide, 1@HOST:PORT,2@HOST:PORT,..."),
    "--replication-port": (int, "port at which replicas are fetched; 0: any free one"),
    "--advertise": (str, "where clients find this broker, tcp://HOST:PORT"),
    "--rack": (str, "the rack or zone of this broker"),
    "--cluster-key": (str, "file with the key that all brokers have"),
    "--election-timeout": (float, "seconds of silence after which a controller is elected"),
    "--broker-session-timeout": (float, "seconds of silence after which a broker is fenced"),
    "--replica-lag-time": (float, "seconds behind after which a follower is not in sync"),
    "--leader-balance-interval": (float, "seconds between looks whether first replicas lead"),
    "--gateway-stall-timeout": (float, "seconds after which a silent gateway is replaced"),
}


def parse(argv: Sequence[str] | None) -> tuple[NodeConfig, Starter, int]:
    """The configuration, who started it, and the verbosity."""
    parser = argparse.ArgumentParser(prog="python -m penstock.server", allow_abbrev=False)
    parser.add_argument("--data", metavar="DIR", help="data folder; default: the name's own")
    parser.add_argument(
        "--name",
        help=f"clients find it by shm://NAME; default: {DEFAULT_NODE} without --data, else none, "
        "and it is found by shm:///DIR",
    )
    parser.add_argument("--writers", type=int, metavar="N", help="most writer processes")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="gets `ready` when serving")
    parser.add_argument(
        "--owner", type=int, metavar="PID", help="stop cleanly when this process is dead"
    )
    parser.add_argument(
        "--clock-fd", type=int, metavar="FD", help="by which a test moves the coordinator's clock"
    )
    parser.add_argument(
        "--log-format", choices=FORMATS, default=os.environ.get(FORMAT_VARIABLE) or "text"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="listen beyond this host without keys all the same"
    )
    parser.add_argument("-v", "--verbose", action="count", default=0)
    parser.add_argument("-q", "--quiet", action="count", default=0)
    for option, (kind, text) in _OPTIONS.items():
        parser.add_argument(option, type=kind, metavar="N", help=text)
    given = vars(parser.parse_args(argv))
    fields = {option[2:].replace("-", "_") for option in _OPTIONS}
    name = given["name"] or (None if given["data"] else DEFAULT_NODE)
    try:
        config = NodeConfig(
            data_folder=given["data"] or os.fspath(default_data_folder(name or DEFAULT_NODE)),
            name=name,
            writers_max=given["writers"],
            log_format=given["log_format"],
            insecure=given["insecure"],
            **{field: given[field] for field in fields if given[field] is not None},
        )
    except ConfigError as error:
        parser.error(str(error))
    starter = Starter(given["ready_fd"], given["owner"], given["clock_fd"])
    return config, starter, given["verbose"] - given["quiet"]


def main(argv: Sequence[str] | None = None) -> int:
    config, starter, verbosity = parse(argv)
    configure_logging(verbosity, config.log_format)
    return serve(config, starter)


if __name__ == "__main__":
    sys.exit(main())
