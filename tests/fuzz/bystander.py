"""Somebody who minds their own business while a gateway is attacked: one record after the other,
each acknowledged before the next, all read back by a consumer of the same process.

`python bystander.py URL TOPIC` prints a line of JSON for each record: when it was acknowledged and
how long that took. Ends with its input, after what it read: a last line with all of it in order.
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
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    sent = 0
    with penstock.connect(url, transport="tcp") as client:
        with client.producer(linger=0) as producer:
            while not over.wait(PAUSE):
                begun = time.monotonic()
                producer.send(topic, b"%d" % sent).result(30)
                now = time.monotonic()
                sent += 1
                print(json.dumps({"at": now, "took": now - begun}), flush=True)
        with client.consumer(topic, start="earliest", follow=False) as consumer:
            values = [int(record.value) for record in consumer]
    print(json.dumps({"sent": sent, "is_exact": values == list(range(sent))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
