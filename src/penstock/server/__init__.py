"""The node's processes: the supervising node itself, and the mains that it starts.

Loads nothing until it is asked: each writer process imports this package on its way to its main.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.config import NodeConfig
    from penstock.server.node.main import serve
    from penstock.server.node.node import Node

__all__ = ["Node", "NodeConfig", "serve"]


def __getattr__(name: str) -> object:
    if name == "NodeConfig":
        from penstock.server.config import NodeConfig

        return NodeConfig
    if name == "Node":
        from penstock.server.node.node import Node

        return Node
    if name == "serve":
        from penstock.server.node.main import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
