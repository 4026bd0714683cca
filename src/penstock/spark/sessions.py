"""`session`: a SparkSession that knows the format "penstock" and computes in UTC.

Owns how Spark is started here: which Java, which Python its workers run, and where those find this
package. Jobs, benchmarks and tests start Spark by it; programs with a session of their own call
`register`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.errors import SparkMissingError
from penstock.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where `spark-submit` started this program: its Java, master and settings are used."""
LOCAL: Final = "local[*]"
REGISTRY: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"
"""Spark's list of formats, by the name of its logger."""

CONF: Final[dict[str, object]] = {
    "spark.sql.session.timeZone": "UTC",
    # Rows reach the sink in batches of so many, whatever comes first.
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1 << 16,
    "spark.sql.execution.arrow.maxBytesPerBatch": 16 << 20,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
QUIET: Final[dict[str, object]] = {
    "spark.driver.extraJavaOptions": '"-Dlog4j2.configurationFile=file:{}"'.format(
        Path(__file__).absolute().with_name("quiet.properties")
    )
}
"""Settings that show errors alone, from the start of the JVM on."""
LOCAL_CONF: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Nobody else needs to reach it, and host names that lead nowhere do no harm."""


def session(
    app: str = "penstock", master: str | None = None, conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Returns the Spark session of this process, made if there is none yet.

    Args:
        app: the name it shows.
        master: where it runs, such as "local[4]" or "spark://host:7077". None is what
            `spark-submit` was told, else this host with all its cores.
        conf: further settings of Spark by name; they win over those set here.

    Raises `SparkMissingError`, `JavaMissingError`.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissingError(
            "PySpark is needed here and not installed: pip install 'penstock[spark]'"
        ) from error
    builder = SparkSession.builder.appName(app)
    is_submitted = SUBMITTED in os.environ
    if master is None and not is_submitted:
        master = LOCAL
    if master is not None:
        builder = builder.master(master)
    settings: dict[str, object] = dict(CONF)
    if not is_submitted:
        os.environ["JAVA_HOME"] = os.fspath(java_home())
        if master is not None and master.startswith("local"):  # the same machine: this Python
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            settings["spark.executorEnv.PYTHONPATH"] = _path_of_workers()
            settings |= LOCAL_CONF
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_running() -> bool:
    """Returns whether this process has a session already."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() is not None


def register(spark: SparkSession) -> None:
    """Makes the format "penstock" known to a session.

    Spark looks for a format of that name in the active session, whichever session it registers for:
    so this one is made active meanwhile.
    """
    from penstock.spark.source import PenstockDataSource

    jvm: Any = spark._jvm
    # That it may find the format by itself as well is no news: no warning that one is replaced.
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(REGISTRY, log4j.Level.ERROR)
    java = jvm.SparkSession
    before = java.getActiveSession()
    java.setActiveSession(spark._jsparkSession)
    try:
        spark.dataSource.register(PenstockDataSource)
    finally:
        if before.isDefined():
            java.setActiveSession(before.get())


def _path_of_workers() -> str:
    """Workers find this very copy of Penstock, from a checkout as well."""
    here = os.fspath(Path(__file__).absolute().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([here, *(path for path in given if path and path != here)])
