"""How the Java of Spark runs in tests: for seconds, so that what it would gain from its second
compiler and from collecting garbage on several threads is less than what they take from the tests
beside it (28 s of CPU against 18 for a first query and a job)."""

from __future__ import annotations

from typing import Final

QUICK_JAVA: Final[dict[str, object]] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings of the session that starts it."""
