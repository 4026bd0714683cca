"""`penstock serve`: run a node in the foreground."""

from __future__ import annotations

import os
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.command import Env, command
from penstock.core.errors import ConfigError
from penstock.operations import values

if TYPE_CHECKING:
    from penstock.server.config import NodeConfig

_ALIASES: Final = {"data": "data_folder", "writers": "writers_max"}
_SIZES: Final = (
    "lane_capacity", "cleaner_rate", "client_window", "client_bytes_max", "principal_bytes_max",
)  # fmt: skip
_TEXTS: Final = (
    "data_folder", "name", "log_format", "metrics", "listen", "cluster_listen",
    "controller_quorum", "advertise", "rack", "cluster_key",
)  # fmt: skip
CONFIG_BYTES_MAX: Final = 1 << 20


class LogFormat(StrEnum):
    """The format of log lines."""

    text = "text"
    json = "json"


def add_to(app: typer.Typer) -> None:
    command(app, "serve")(serve)


def serve(
    env: Env,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Data folder. Default: $PENSTOCK_DATA_DIR, else the name's own in "
            "~/.local/share/penstock.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Clients find the node by shm://NAME. Default: 'default', or none if "
            "--data is given: then shm:///DIR reaches it."
        ),
    ] = None,
    writers: Annotated[int | None, typer.Option(min=1, help="Most writer processes.")] = None,
    lane_capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Shared memory of a producer's lane, like 4MiB; a batch takes at most a quarter.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Serve clients on other hosts too, at tcp://ADDRESS:PORT; port 0 is any free one.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let --listen be an address that other hosts reach, without keys.",
        ),
    ] = False,
    node_id: Annotated[
        int | None,
        typer.Option(min=1, help="Be a broker of a cluster, with this number; needs --listen."),
    ] = None,
    controller_quorum: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The brokers that decide, the same for all: 1@HOST:PORT,2@HOST:PORT,3@HOST:PORT.",
        ),
    ] = None,
    cluster_listen: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where other brokers reach this one. Default: its place in --controller-quorum.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where clients find this broker, if not at --listen."),
    ] = None,
    rack: Annotated[str | None, typer.Option(help="Replicas go to different racks.")] = None,
    cluster_key: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The key that all brokers of the cluster have."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /metrics, /healthz and /readyz there by HTTP, like 127.0.0.1:9641.",
        ),
    ] = None,
    metrics_public: Annotated[
        bool,
        typer.Option(
            "--metrics-public",
            help="Let --metrics be an address that other hosts reach: it has no password.",
        ),
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--log-format",
            help="Lines of the log on stderr. Default: $PENSTOCK_LOG_FORMAT, else text.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with any setting of the node; options win."),
    ] = None,
) -> int:
    """Run a node until Ctrl-C, SIGTERM or SIGHUP, which drain and close it; a second Ctrl-C or
    SIGTERM leaves at once."""
    from penstock.server.node.log_format import FORMAT_VARIABLE
    from penstock.server.node.main import Starter, configure_logging
    from penstock.server.node.main import serve as run_node

    given: dict[str, Any] = {"data": data, "name": name, "writers": writers}
    given["lane_capacity"] = lane_capacity
    given["listen"], given["insecure"] = listen, insecure or None
    given["node_id"], given["controller_quorum"] = node_id, controller_quorum
    given["cluster_listen"], given["advertise"] = cluster_listen, advertise
    given["rack"], given["cluster_key"] = rack, cluster_key
    given["metrics"], given["metrics_public"] = metrics, metrics_public or None
    given["log_format"] = log_format.value if log_format is not None else None
    settings: dict[str, Any] = {"log_format": os.environ.get(FORMAT_VARIABLE) or "text"}
    settings |= read_config(config) if config is not None else {}
    settings |= {key: value for key, value in given.items() if value is not None}
    node = node_config(settings)
    _reset_logging()
    configure_logging(-1 if env.quiet else env.verbose, node.log_format)
    reader, writer = os.pipe()
    teller = threading.Thread(target=_tell_when_ready, args=(env, node, reader), daemon=True)
    return run_node(node, Starter(writer, forked=teller.start))


def read_config(path: Path) -> dict[str, Any]:
    """Reads the settings of a TOML file."""
    import tomllib

    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read --config {path}: {error.strerror}") from error
    if len(text) > CONFIG_BYTES_MAX:
        raise ConfigError(f"--config {path} is over {CONFIG_BYTES_MAX} bytes")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is no TOML: {error}") from error


def node_config(settings: dict[str, Any]) -> NodeConfig:
    """Makes a checked configuration from names as people write them."""
    from dataclasses import fields

    from penstock.ipc.paths import DEFAULT_NODE, default_data_folder
    from penstock.server.config import NodeConfig

    known = {field.name: str(field.type) for field in fields(NodeConfig)}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        field = _ALIASES.get(key, key).replace("-", "_")
        if field not in known:
            raise ConfigError(
                f"a node has no setting {key!r}; there are {', '.join(sorted({*known, *_ALIASES}))}"
            )
        if isinstance(value, str) and field not in _TEXTS:
            value = _read(field, value, known[field])
        found[field] = value
    for field in _TEXTS:
        if not isinstance(found.get(field, ""), str):
            raise ConfigError(f"{field} is {found[field]!r}: write it in quotes")
    if not found.get("name"):
        found["name"] = None if "data_folder" in found else DEFAULT_NODE
    if "data_folder" not in found:
        found["data_folder"] = os.fspath(default_data_folder(found["name"]))
    return NodeConfig(**found)


def read_setting(name: str, text: str) -> float | str:
    """Reads a setting that is typed as a word: sizes and durations with their units."""
    from dataclasses import fields

    from penstock.server.config import NodeConfig

    kind = next((str(one.type) for one in fields(NodeConfig) if one.name == name), "str")
    if kind.startswith("int") and name not in _SIZES:
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise ConfigError(f"{name} is {text!r:.100}: write a whole number")
        return int(text)
    return _read(name, text, kind) if kind.startswith(("int", "float")) else text


def _read(field: str, text: str, kind: str) -> float:
    """Reads a setting of that type that was written in quotes."""
    from penstock.server.config import SHARES_OF_DISK

    if kind == "bool" or (kind.startswith("int") and field not in _SIZES):
        raise ConfigError(f"{field} is {text!r}: write it without quotes")
    if field in SHARES_OF_DISK:
        return values.ratio(text) if text.strip().endswith("%") else values.size(text)
    return values.size(text) if field in _SIZES else values.seconds(text)


def _reset_logging() -> None:
    """Removes the log handlers of a client: the node writes its own log lines."""
    import logging

    for handler in list(logging.getLogger().handlers):
        logging.getLogger().removeHandler(handler)


def _listens_at(node: NodeConfig) -> str:
    """Returns the address for remote clients, with the real port."""
    from penstock.server.node.data_folder import NODE_FILE, NODE_SCHEMA, NodeRecord, decode_document

    path = os.path.join(node.data_folder, NODE_FILE)
    with open(path, "rb") as file:
        return decode_document(file.read(), NodeRecord, path, NODE_SCHEMA).listen


def _tell_when_ready(env: Env, node: NodeConfig, reader: int) -> None:
    with os.fdopen(reader, "rb") as pipe:
        if not pipe.readline():
            return
    url = f"shm://{node.data_folder}" if node.name is None else f"shm://{node.name}"
    listen = _listens_at(node) if node.listen is not None else ""
    if env.is_json:
        told: dict[str, object] = {"event": "ready", "url": url, "data_folder": node.data_folder}
        told["pid"] = os.getpid()
        if listen:
            told["listen"] = listen
        output.write_json(told)
        output.flush()
    elif node.log_format == "text":  # else every line on stderr is an object, and the log says it
        env.say(f"penstock serves {node.data_folder} at {url}{f' and {listen}' if listen else ''}")
