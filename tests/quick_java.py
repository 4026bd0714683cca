"""How the Java of Spark runs in tests: for seconds, so that what it would gain from its second
compiler, from collecting garbage on several threads and from compiling each query is less than what
they take from the tests beside it (28 s of CPU against 18 for a first query and a job; without
compiled queries 46 against 52 for twelve tests of jobs)."""

from __future__ import annotations

from typing import Final

QUICK_JAVA: Final[dict[str, object]] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of the session that starts it."""
