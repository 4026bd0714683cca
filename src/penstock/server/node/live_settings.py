"""Settings of a node that are changed while it runs, and kept for its next runs.

    given at the start --settings.json--> in use --change: checked, written, synced--> in use

Code that reads a setting from the node's one `NodeConfig` at each use has the new value at once.
Objects that were made from a value at the start learn of it by `applied`. Settings that other
processes, shared memory or the controller's log have taken over are not among `LIVE`: they need a
restart. Owns that list and settings.json, which counts more than the command line until a setting
is given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from typing import Final

import msgspec

from penstock.core.errors import ConfigError, DataFolderError, NotConnectedError, PenstockError
from penstock.core.storage import Storage
from penstock.ipc import operating as op
from penstock.server.config import NodeConfig, allowed_of, put_in_place
from penstock.server.node.data_folder import decode_document, encode_document

logger = logging.getLogger("penstock.node")

SETTINGS_FILE: Final = "settings.json"
SETTINGS_SCHEMA: Final = 1
LIVE: Final = frozenset(
    {
        "clients_max", "lanes_max", "partitions_max", "topics_max",
        "writer_stall_timeout", "writer_open_timeout", "gateway_stall_timeout",
        "restart_backoff", "restart_backoff_max", "restart_healthy_after",
        "drain_timeout", "coordinator_timeout", "client_absence_max", "offsets_retention",
        "disk_warn", "disk_stop", "cleaner_interval", "cleaner_rate",
    }
)  # fmt: skip

Value = op.SettingValue


class SettingsDocument(msgspec.Struct, frozen=True):
    """settings.json."""

    schema: int = SETTINGS_SCHEMA
    settings: dict[str, Value] = {}


class LiveSettings:
    """`config`: what the node was started with. Read with `read` once its folder is its own."""

    def __init__(self, config: NodeConfig) -> None:
        self._given = config
        self.config = config
        self.applied: Callable[[frozenset[str]], None] = lambda _: None
        """Told the names of settings that are others now."""
        self._storage = Storage()
        self._path = os.path.join(config.data_folder, SETTINGS_FILE)
        self._kept: dict[str, Value] = {}
        self._lock = asyncio.Lock()
        self._job: asyncio.Future[None] | None = None
        self._is_closed = False

    def read(self) -> NodeConfig:
        """The settings that this run begins with: those given, and those that were changed before.
        Raises `DataFolderError` for a settings.json that means nothing."""
        found = SettingsDocument()
        if (data := self._storage.read_file(self._path)) is not None:
            found = decode_document(data, SettingsDocument, self._path, SETTINGS_SCHEMA)
        try:
            _check_live(found.settings)
            # A copy in any case: it changes, and what was given is kept.
            self.config = replace(self._given, **found.settings)  # type: ignore[arg-type]
        except ConfigError as error:
            raise DataFolderError(
                f"{self._path} has settings that were changed while the node ran, and they do "
                f"not go with those of this start: {error}. Correct or remove the file"
            ) from error
        self._kept = found.settings
        if self._kept:
            logger.info(
                "settings that were changed while the node ran hold on: %s (`penstock node config "
                "NAME=` gives one back)", _listed(self._kept),
            )  # fmt: skip
        return self.config

    def described(self) -> op.Settings:
        now = asdict(self.config)
        found = []
        for field in fields(NodeConfig):
            default = None if field.default is MISSING else field.default
            value = now[field.name]
            source = "default" if value == default else "start"
            found.append(
                op.SettingInfo(
                    field.name, value, default, "live" if field.name in self._kept else source,
                    field.name in LIVE, allowed_of(field.name),
                )
            )  # fmt: skip
        return op.Settings(found)

    async def change(self, changes: Mapping[str, Value], who: str) -> op.Settings:
        """All of them or none. None gives a setting back: it is as it was given at the start."""
        async with self._lock:
            _check_live(changes)
            kept = {**self._kept, **changes}
            kept = {name: value for name, value in kept.items() if value is not None}
            after = replace(self._given, **kept)  # type: ignore[arg-type]  # checked by that
            changed = frozenset(
                name for name in LIVE if getattr(after, name) != getattr(self.config, name)
            )
            if kept != self._kept:
                await self._write(kept)
                self._kept = kept
            if changed:
                put_in_place(self.config, after, changed)
                try:
                    self.applied(changed)
                except (PenstockError, OSError):  # they count, and the next start has all of them
                    logger.exception("settings are changed, and not all of them took effect")
                logger.info(
                    "%s changed settings of the node: %s", who,
                    _listed({name: getattr(after, name) for name in changed}),
                    extra={"principal": who},
                )  # fmt: skip
            return self.described()

    async def _write(self, kept: dict[str, Value]) -> None:
        if self._is_closed:
            raise NotConnectedError("this node is stopping: ask again when it is back")
        data = encode_document(SettingsDocument(settings=dict(sorted(kept.items()))))
        self._job = asyncio.get_running_loop().run_in_executor(
            None, self._storage.write_file_atomic, self._path, data
        )
        await asyncio.shield(self._job)

    async def close(self) -> None:
        """Wait for what has begun: it must not reach into a folder that is another node's."""
        self._is_closed = True
        if self._job is not None:
            await asyncio.wait([self._job])


def _check_live(names: Mapping[str, object]) -> None:
    known = {field.name for field in fields(NodeConfig)}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"a node has no setting {name!r:.100}: `penstock node config` lists them"
            )
        if name not in LIVE:
            raise ConfigError(
                f"{name} needs a restart: give it to `penstock serve`, by its option or in --config"
            )


def _listed(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
