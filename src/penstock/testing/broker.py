"""`Broker`: a real node on a throw-away folder, for one test or for many."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from penstock.core.errors import ConfigError
from penstock.testing.housed import PREFIX, Housed
from penstock.testing.served import Durability, Served, Transport, as_transport

TRANSPORT_VARIABLE: Final = "PENSTOCK_TEST_TRANSPORT"
"""How clients of a broker reach it that was not told: "shm" (the default) or "tcp"."""

__all__ = ["PREFIX", "TRANSPORT_VARIABLE", "Broker"]


class Broker(Served, Housed):
    """Started when made; `with` (or `close`) takes it away with all that is in it.

    Args:
        partitions: how many a topic gets that is made without saying.
        durability: the same ("os", "interval" or "fsync").
        writers: most writer processes of the node; None leaves its default.
        options: further options of the node by their names in the operations guide, such as
            `{"lanes_max": 4}`; `penstock.server` has to know them on its command line.
        listen: whether clients find it by TCP too, at `tcp_url`.
        transport: how `url` and `connect` reach it, "shm" or "tcp"; None is what the environment
            says by `PENSTOCK_TEST_TRANSPORT`, else "shm".
        start_timeout: seconds within which the node must admit clients.

    Raises `PenstockError` with the node's log when it does not start.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        durability: Durability = "os",
        writers: int | None = None,
        options: Mapping[str, object] | None = None,
        listen: bool = False,
        transport: Transport | None = None,
        start_timeout: float = 15.0,
    ) -> None:
        way = as_transport(transport or os.environ.get(TRANSPORT_VARIABLE) or "shm")
        self._serve(partitions, durability, way)
        super().__init__(
            writers=writers,
            options=options,
            listen=listen or way == "tcp",
            start_timeout=start_timeout,
        )

    @property
    def url(self) -> str:
        return self.tcp_url if self.transport == "tcp" else self.node.url

    def kill_writer(self, topic: str | None = None, partition: int = 0) -> list[int]:
        """SIGKILL the writer process of that partition, or all writers of the node. Pids of those
        that lived.

        The node replaces them at once, and clients go on as after any such death.
        """
        with self.connect() as client, client.admin() as admin:
            pids = {info.writer: info.pid for info in admin.describe_node().writers if info.pid}
            if topic is not None:
                parts = admin.describe_topic(topic).partitions
                if not 0 <= partition < len(parts):
                    raise ConfigError(
                        f"topic {topic!r} has no partition {partition}: it has {len(parts)}"
                    )
                writer = parts[partition].writer
                pids = {writer: pids[writer]} if writer in pids else {}
        killed = []
        for pid in sorted(pids.values()):
            with suppress(ProcessLookupError):  # it died after the node listed it
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return killed
