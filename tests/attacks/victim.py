"""The tenant that minds its own business: it sends, reads, commits and asks, and notes how long
each took.

`python -m attacks.victim SITE` reads seconds from its input, line by line, and prints for each line
what it measured within them: by verb, the milliseconds of each call.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

from attacks.site import VICTIM, Site

import penstock
from penstock.testing import wait_until

TOPIC = f"{VICTIM}.own"
SEND_EVERY = 0.004
ASK_EVERY = 0.02


class Victim:
    """`measure` says what each verb took."""

    def __init__(self, client: penstock.Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._took: dict[str, list[float]] = {}
        self._ready: set[str] = set()
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._send, self._read, self._commit, self._ask)
        ]
        for each in self._threads:
            each.start()

    def is_ready(self) -> bool:
        return len(self._ready) == len(self._threads)

    def measure(self, seconds: float) -> dict[str, list[float]]:
        """The milliseconds of each call, by verb, for so long."""
        self._taken()
        time.sleep(seconds)
        return self._taken()

    def _taken(self) -> dict[str, list[float]]:
        """What was noted since the last time, which nobody adds to any more."""
        with self._lock:
            taken, self._took = self._took, {}
        return taken

    def _note(self, verb: str, seconds: float) -> None:
        self._ready.add(verb)
        with self._lock:
            self._took.setdefault(verb, []).append(seconds * 1e3)

    def _timed(self, verb: str, call: Callable[[], object]) -> None:
        begun = time.monotonic()
        call()
        self._note(verb, time.monotonic() - begun)

    def _send(self) -> None:
        with self._client.producer(linger=0) as producer:
            while True:
                begun = time.monotonic()
                producer.send(TOPIC, b"%.6f" % begun).result(60)
                self._note("send", time.monotonic() - begun)
                time.sleep(SEND_EVERY)

    def _read(self) -> None:
        with self._client.consumer(TOPIC, start="latest") as consumer:
            while True:
                for record in consumer.poll(timeout=1.0):
                    self._note("read", time.monotonic() - float(record.value or b"0"))

    def _commit(self) -> None:
        with self._client.consumer(TOPIC, group=f"{VICTIM}.group", guarantee="manual") as consumer:
            while True:
                if batch := consumer.poll(timeout=1.0):
                    self._timed("commit", lambda: consumer.commit(batch))
                time.sleep(ASK_EVERY)

    def _ask(self) -> None:
        with self._client.admin() as admin:
            while True:
                self._timed("look up", lambda: admin.describe_topic(TOPIC))
                time.sleep(ASK_EVERY)


def main(site: str) -> None:
    with Site(**json.loads(site)).connect(VICTIM) as client:
        victim = Victim(client)
        wait_until(victim.is_ready, 60.0, "the victim's calls to begin")
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(victim.measure(float(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
