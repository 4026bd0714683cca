"""Producer and consumer processes as the crash machine holds them: started, faulted, heard out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from crash.ground import environment
from crash.ledger import ConsumerLedger, ProducerLedger, whole_lines

ACTORS_MAIN = str(Path(__file__).with_name("actors.py"))


class Actor:
    """One process and its ledger. What it wrote before its death is read to the end."""

    def __init__(
        self, plan: dict[str, Any], ledger: ProducerLedger | ConsumerLedger, folder: Path
    ) -> None:
        self.who: str = plan["who"]
        self.plan = plan
        self.ledger = ledger
        self.killed = False
        self._record = folder / f"{self.who}.jsonl"
        self._stderr = folder / f"{self.who}.err"
        with self._stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, ACTORS_MAIN, json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
            )
        self._trouble: Exception | None = None
        self._reader = threading.Thread(target=self._read, name=f"ledger of {self.who}")
        self._reader.start()

    def _read(self) -> None:
        """Take the ledger in until the pipe ends. Keeps a copy for whoever has to look into it."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        buffer = bytearray()
        with self._record.open("wb") as record:
            while data := os.read(fd, 1 << 16):
                record.write(data)
                buffer += data
                try:
                    for line in whole_lines(buffer):
                        self.ledger.take(line)
                except Exception as error:
                    self._trouble = self._trouble or error

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.hear_out(10.0)

    def ask_to_end(self, **order: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def hear_out(self, timeout: float) -> bool:
        """Wait for its end and read the last of its ledger; False if it did not end in time."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(timeout)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self._trouble is not None:
            raise self._trouble
        return not self._reader.is_alive()

    def stacks(self) -> str:
        """Where its threads stand, for a process that hangs."""
        size = self._stderr.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        return self._stderr.read_text("utf-8", "replace")[size:]

    def errors(self) -> str:
        return self._stderr.read_text("utf-8", "replace")[-4000:]

    def forget(self) -> None:
        """Remove its copies on disk: it did what it had to."""
        self._record.unlink(missing_ok=True)
        self._stderr.unlink(missing_ok=True)
