"""Which Java Spark is started with.

The first that is new enough of JAVA_HOME, the `java` of PATH, and what is installed in the folders
where distributions put it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.spark.errors import JavaMissingError

JAVA_MIN: Final = 17
FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java")
ANSWER_TIMEOUT: Final = 30.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@functools.cache
def java_home() -> Path:
    """The home of a Java that Spark runs on. Raises `JavaMissingError`."""
    seen = []
    for place, home in _candidates():
        version = version_of(home)
        if version is not None and version >= JAVA_MIN:
            return home
        seen.append(f"{place} is " + ("no Java" if version is None else f"Java {version}"))
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissingError(
        f"Spark needs Java {JAVA_MIN} or newer and none was found{found}: install one (on Debian "
        "the package openjdk-17-jre-headless), or set JAVA_HOME to where one is"
    )


def version_of(home: Path) -> int | None:
    """The major version of the Java at `home`, None where there is none that runs."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return None if found is None else int(found[1])


def _candidates() -> Iterator[tuple[str, Path]]:
    """(where it was found, home), best first."""
    if named := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={named}", Path(named)
    if on_path := shutil.which("java"):
        program = Path(on_path).resolve()
        yield on_path, program.parents[1]
    for folder in FOLDERS:
        for program in sorted(Path(folder).glob("*/bin/java"), reverse=True):
            yield str(program), program.parents[1]
