"""A real PostgreSQL of the tests' own, on a socket in a folder of its own, without any rights."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from cleanup_commands import Afterwards

STARTS_WITHIN: Final = 30.0
_FOLDERS: Final = ("/usr/local/bin", *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True))


def program(name: str) -> str | None:
    """The path of a program of PostgreSQL: Debian keeps most of them off the path."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))


class PostgresqlServer:
    """Started when made. `durable`: commits wait for the disk, which only figures need: what is
    killed keeps its page cache."""

    def __init__(self, *, durable: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self._data = self._folder / "data"
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            user = pwd.getpwnam("nobody")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._cleanup: Afterwards | None = None
        self.dsn = f"postgresql://tests@/postgres?host={self._folder}"
        self._run(
            "initdb", "--pgdata", self._data, "--username=tests", "--auth=trust", "--no-sync",
            "--encoding=UTF8", "--locale=C",
        )  # fmt: skip
        self.start()

    def _run(self, name: str, *arguments: object) -> None:
        found = program(name)
        assert found is not None, name
        done = subprocess.run(
            [found, *map(str, arguments)], capture_output=True, text=True, cwd="/", timeout=60,
            check=False, **self._as,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """After `kill`, too: it recovers then."""
        settings = {
            "listen_addresses": "", "unix_socket_directories": self._folder,
            "max_connections": 50, "shared_buffers": "64MB",
            "fsync": "on" if self._durable else "off",
        }  # fmt: skip
        arguments = [str(program("postgres")), "-D", str(self._data)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdout=log, stderr=log, cwd="/", start_new_session=True, **self._as
            )
        self._cleanup = Afterwards(
            "true", killed=f"kill -QUIT {self._process.pid}; rm -rf {self._folder}"
        )
        deadline = time.monotonic() + STARTS_WITHIN
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, *, autocommit: bool = True) -> Any:
        import psycopg

        return psycopg.connect(self.dsn, autocommit=autocommit, connect_timeout=10)

    def kill(self) -> None:
        """SIGKILL to all its processes: it has to recover."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            family = [parent, *parent.children(recursive=True)]
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, 10)
        self._process.wait(10)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
        if self._cleanup is not None:
            self._cleanup.now()
        shutil.rmtree(self._folder, ignore_errors=True)


def started_or_skipped(*, durable: bool = False) -> PostgresqlServer:
    """Skips the test where PostgreSQL or its driver is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install penstock[outbox]")
    for name in ("initdb", "postgres"):
        if program(name) is None:
            pytest.skip(f"PostgreSQL has no {name} here: on Debian, apt-get install postgresql")
    return PostgresqlServer(durable=durable)
