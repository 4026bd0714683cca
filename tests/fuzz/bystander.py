"""Somebody who minds their own business while a gateway is attacked: one record after the other,
each acknowledged before the next, all read back by a consumer of the same process.

`python bystander.py URL TOPIC` says when it has begun, and ends with its input. Then it prints when
each record was acknowledged and how long that took, and whether all were read back, once, in order.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import penstock

PAUSE = 0.002


def main(url: str, topic: str) -> None:
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    rows: list[dict[str, float]] = []
    with penstock.connect(url, transport="tcp") as client:
        with client.producer(linger=0) as producer:
            while not over.wait(PAUSE):
                begun = time.monotonic()
                producer.send(topic, b"%d" % len(rows)).result(30)
                now = time.monotonic()
                rows.append({"at": now, "took": now - begun})
                if len(rows) == 1:
                    print("begun", flush=True)
        with client.consumer(topic, start="earliest", follow=False) as consumer:
            values = [int(record.value or b"-1") for record in consumer]
    print(json.dumps({"rows": rows, "is_exact": values == list(range(len(rows)))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
