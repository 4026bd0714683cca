"""The cleaner process as the node sees it: there once a topic needs it (see `child`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.server.config import NodeConfig
from penstock.server.node.data_folder import DataFolder
from penstock.server.process.child import ChildProcess
from penstock.server.process.fork_server import Start, spawn

logger = logging.getLogger("penstock.node")

CLEANER_COMMAND: Final = (sys.executable, "-m", "penstock.server.cleaner.main")


class CleanerProcess(ChildProcess):
    """`is_wanted`: whether there is a topic with retention or compaction."""

    name = "cleaner"

    def __init__(
        self,
        config: NodeConfig,
        folder: DataFolder,
        lock_fd: int,
        is_wanted: Callable[[], bool],
        command: Sequence[str] = CLEANER_COMMAND,
        start: Start = spawn,
    ) -> None:
        super().__init__(config, folder, lock_fd, command, start)
        self._is_wanted = is_wanted

    @property
    def is_needed(self) -> bool:
        return self._is_wanted()

    def _arguments(self) -> Mapping[str, object]:
        return {
            "--data": self._folder.path,
            "--shm": self._folder.record.shm,
            "--believed-us": self._folder.clock.now_us(),
            "--interval": self._config.cleaner_interval,
            "--rate": self._config.cleaner_rate,
            "--log-format": self._config.log_format,
            "--log-level": logging.getLevelName(logger.getEffectiveLevel()),
        }
