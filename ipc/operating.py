"""The messages of an operator to one node: its attached clients, the removal of one, its settings.

They travel as the messages of `ipc.messages` do. In a cluster each broker knows its own clients:
`broker` names one, and None means the broker that receives the message. Lists come in pages.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.ipc.clustering import Broker

CLIENTS_PER_PAGE: Final = 40
CHANGES_MAX: Final = 100
"""Settings that one request changes."""

SettingValue = str | int | float | bool | None
ClientNumber = Annotated[int, msgspec.Meta(ge=0, lt=(1 << 63) - 1)]


class ClientInfo(msgspec.Struct, frozen=True):
    """A producer, consumer or admin that is attached. `id`: its number, which this run of the node
    gives once, in a cluster behind its broker's number: `2-17`. `pid` 0 and `address`: of one on
    another host; else `address` is empty. `since`: seconds since 1970."""

    id: str
    kind: str  # "producer" | "consumer" | "admin"
    client_id: str
    principal: str
    transport: str  # "shm" | "tcp"
    address: str
    pid: int
    since: float


class SettingInfo(msgspec.Struct, frozen=True):
    """A setting of the node. `source`: "default", "start" (the command line or a file said so) or
    "live" (changed since, and kept). `is_live`: it can be changed while the node runs. `allowed`:
    its range in words, empty where there is none."""

    name: str
    value: SettingValue
    default: SettingValue
    source: str
    is_live: bool
    allowed: str


# --- client -> node -----------------------------------------------------------------------------
class ListClients(msgspec.Struct, frozen=True, tag="list_clients"):
    """Those whose numbers are above `after`, in their order."""

    after: ClientNumber = 0
    broker: Broker | None = None


class KickClient(msgspec.Struct, frozen=True, tag="kick_client"):
    """End the connection of the client with this number, and tell it that."""

    number: ClientNumber
    broker: Broker | None = None


class DescribeSettings(msgspec.Struct, frozen=True, tag="describe_settings"):
    broker: Broker | None = None


class ChangeSettings(msgspec.Struct, frozen=True, tag="change_settings"):
    """All of these at once, or none. None gives a setting back to what the node was started
    with."""

    changes: Annotated[dict[str, SettingValue], msgspec.Meta(max_length=CHANGES_MAX)]
    broker: Broker | None = None


# --- node -> client -----------------------------------------------------------------------------
class Clients(msgspec.Struct, frozen=True, tag="clients"):
    """`last`: the number of the last one, to go on after."""

    clients: list[ClientInfo]
    last: int
    more: bool


class Settings(msgspec.Struct, frozen=True, tag="settings"):
    """All of them, in the order in which the node has them."""

    settings: list[SettingInfo]


Request = ListClients | KickClient | DescribeSettings | ChangeSettings
Reply = Clients | Settings
