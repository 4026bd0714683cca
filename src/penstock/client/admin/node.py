"""The verbs of `penstock.Admin` about one node: its clients, and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.core.errors import ConfigError
from penstock.ipc import messages as ms
from penstock.ipc import operating as op

ClientInfo = op.ClientInfo
SettingInfo = op.SettingInfo
SettingValue = op.SettingValue


class NodeAdmin:
    """`ask` is a request of an admin to the node, or to the broker that the request names."""

    def __init__(self, ask: Callable[[Any, Any], Any]) -> None:
        self._ask = ask

    def listed(self, broker: int | None) -> list[ClientInfo]:
        """Returns the clients of that broker; None: of the broker that is asked."""
        clients: list[ClientInfo] = []
        last = 0
        while True:
            answer: op.Clients = self._ask(op.ListClients(last, broker), op.Clients)
            clients += answer.clients
            last = answer.last
            if not answer.more:
                return clients

    def kick(self, client: str) -> None:
        found = re.fullmatch(r"(?:([0-9]{1,5})-)?([0-9]{1,18})", client)
        broker = int(found[1]) if found and found[1] else None
        if found is None or (broker is not None and not 1 <= broker <= 65_535):
            raise ConfigError(
                f"{client!r:.100} is no id of a client: take one that `penstock client list` shows"
            )
        self._ask(op.KickClient(int(found[2]), broker), ms.Done)

    def settings(self, broker: int | None) -> list[SettingInfo]:
        answer: op.Settings = self._ask(op.DescribeSettings(broker), op.Settings)
        return answer.settings

    def alter(self, changes: Mapping[str, SettingValue], broker: int | None) -> list[SettingInfo]:
        for name, value in changes.items():
            if value is not None and not isinstance(value, (str, int, float)):
                kind = type(value).__name__
                raise ConfigError(f"{name} is {value!r:.100}: a setting is no {kind}")
        if len(changes) > op.CHANGES_MAX:
            raise ConfigError(f"{len(changes)} settings at once: {op.CHANGES_MAX} at most")
        answer: op.Settings = self._ask(op.ChangeSettings(dict(changes), broker), op.Settings)
        return [one for one in answer.settings if one.name in changes]
