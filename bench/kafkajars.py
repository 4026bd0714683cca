"""Kafka's jars, by Maven, in a folder of the user's cache, checked before they run."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.bench.errors import BenchError
from penstock.bench.peerserver import finished

VERSION: Final = "4.3.0"
SHA256: Final = "d97e4284a9ee1485ddeab1ab73a79deddcdf5e15d8a880aeb28ae1d4a77b9c37"
"""Of the output of `sha256sum` for all of them, by name."""
FETCHED_WITHIN: Final = 300.0
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId><artifactId>bench-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version>
    </dependency>
  </dependencies>
</project>
"""


def cache() -> Path:
    """The folder, which need not be there."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return base / "penstock" / f"kafka-{VERSION}"


def missing(given: Path | None) -> str | None:
    """Why they are neither in the folder that the user has `given`, nor in the cache, nor to be
    had; None: they are. Fetches them."""
    try:
        fetched(given)
    except BenchError as error:
        return str(error)
    return None


def fetched(given: Path | None) -> Path:
    """The folder of the jars: the `given` one as it is, or that of the cache, fetched where there
    is none and checked. Raises `BenchError`."""
    if given is not None:
        if not any(given.glob("kafka-clients-*.jar")):
            raise BenchError(f"--jars {given}: there is no kafka-clients-*.jar")
        return given
    folder = cache()
    if not folder.is_dir():
        _fetch(folder)
    if (found := digest_of(folder)) != SHA256:
        raise BenchError(
            f"{folder} has not what Kafka {VERSION} consists of (SHA-256 {found} and not "
            f"{SHA256}): remove it, and it is fetched again"
        )
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BenchError(
            "Kafka's jars are missing: on Debian, apt-get install maven, or name a folder of "
            "them by --jars, or a broker that runs by --kafka HOST:PORT"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=folder.parent) as name:
        work = Path(name)
        (work / "pom.xml").write_text(_POM.format(VERSION))
        command = [
            maven, "--quiet", "--batch-mode", "--strict-checksums", "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}",
        ]  # fmt: skip
        finished("maven", command, work, FETCHED_WITHIN)
        if (found := digest_of(work / "jars")) != SHA256:
            raise BenchError(f"what came as Kafka {VERSION} has SHA-256 {found} and not {SHA256}")
        with suppress(OSError):  # another run was quicker
            (work / "jars").rename(folder)


def digest_of(folder: Path) -> str:
    """Of the names and contents of all jars there."""
    whole = hashlib.sha256()
    for jar in sorted(folder.glob("*.jar"), key=lambda jar: jar.name):
        whole.update(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}\n".encode())
    return whole.hexdigest()
