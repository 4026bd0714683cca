"""The crash machine: a node, its clients, and faults at random moments; then everything is checked.

    machine   one data folder; a clean stop every few episodes, looked at for leaks
    episode   topics, producers, consumers -> rounds of faults while traffic flows -> heal -> judge
    round     one fault (a kill -9, a SIGSTOP until some later moment, a restart) and a pause

Everything random is drawn from one seed. The moments are the machine's own, so a seed brings back
the plan of an episode and not each interleaving; the trace says what happened when.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Final

from crash.crash_episode import ROUNDS_MAX, Episode, Figures
from crash.fault_injection import WRITERS
from crash.node_under_test import NodeUnderTest

from penstock.logcheck import check_partition, find_partitions

EPISODES_PER_NODE: Final = 3
"""After so many the node is stopped cleanly, looked at for leaks, and started on its old folder."""


class Broken(AssertionError):
    """An episode in which a promise was not kept."""


class Machine:
    """Runs episodes on one data folder. `close` removes it, unless an episode failed."""

    def __init__(self, seed: int, figures: Figures, rounds_max: int = ROUNDS_MAX) -> None:
        self.seed = seed
        self._rounds_max = rounds_max
        self.figures = figures
        self.failed = False
        rng = random.Random(seed)
        self.node = NodeUnderTest(
            writers_max=WRITERS,
            lane_capacity=rng.choice([64 << 10, 256 << 10, 4 << 20]),
            restart_backoff=0.001,
            restart_backoff_max=0.02,
            writer_stall_timeout=1.0,
            writer_open_timeout=5.0,
        )
        self._count = 0

    def run_episode(self) -> None:
        """One episode, on a node that is running or started for it."""
        seed = self.seed + self._count
        episode = Episode(self.node, seed, self._count, self.figures, rounds_max=self._rounds_max)
        try:
            if not self.node.is_running:
                self.node.start()
            episode.run()
            self._count += 1
            if self._count % EPISODES_PER_NODE == 0:
                self._end_node()
        except Exception as error:
            self.failed = True
            kept = self._keep()
            raise Broken(
                f"{error}\n--- seed {seed} (PENSTOCK_SEED={seed}), data kept in {kept}\n"
                f"--- trace\n{episode.trace_text()}\n--- node\n{self.node.tail()}"
            ) from error
        finally:
            episode.close()
        self.figures.episodes += 1

    def _end_node(self) -> None:
        status = self.node.stop()
        assert status == 0, f"the node ended with {status}"
        self.node.check_gone()
        for partition in find_partitions(str(self.node.data)):
            checked = check_partition(partition)
            assert not checked.errors, checked.errors

    def _keep(self) -> Path:
        """The shared memory goes with the processes: a copy of it stays beside the data."""
        folder = self.node.folder / "shm"
        folder.mkdir(exist_ok=True)
        for name in self.node.shared_memory():
            with contextlib.suppress(OSError):
                shutil.copy("/dev/shm" + name, folder)
        return self.node.folder

    def close(self) -> None:
        if self.node.is_running and not self.failed:
            self._end_node()
        self.node.clear(keep=self.failed)
