"""The demo's producer process: `python -m penstock.demo.producer URL TOPIC LIMIT|all [ACKS]`.

Each flight becomes a record. The key is the aircraft's tail number (none where it is not known),
the value `NUMBER,CSV LINE`, where NUMBER counts the flights from 0. Waits for `go`, sends
everything by per-record `send`, reports its progress, flushes, and reports its counts.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from penstock.client.client import connect
from penstock.client.producer.producer import Producer
from penstock.core.crc import crc32c
from penstock.demo.children import hear, say
from penstock.testing.flights import read_rows, tail_number

DELIVERY_TIMEOUT: Final = 60.0
REPORTS: Final = 200
"""So many progress messages a run, so that half-way is known to half a per cent."""
WINDOW_STEPS: Final = 20
"""The most of these steps that are in flight to a cluster, which acknowledges in larger runs. The
broker that is killed half-way is to have work in hand."""
PAUSE: Final = 0.0005


def main(arguments: list[str]) -> None:
    url, topic, limit, *how = arguments
    begun = time.monotonic()
    rows = read_rows(None if limit == "all" else int(limit))
    keys = list(map(tail_number, rows))
    values = [b"%d,%b" % (number, row) for number, row in enumerate(rows)]
    with connect(url, client_id="demo-producer") as client:
        is_replicated = how == ["all"]
        producer = client.producer(
            acks="all" if is_replicated else 1,
            delivery_timeout=DELIVERY_TIMEOUT,
            block_timeout=DELIVERY_TIMEOUT,
        )
        say("ready", records=len(rows), seconds=time.monotonic() - begun)
        while hear(None) != "go":
            pass
        seconds = send_all(producer, topic, keys, values, is_replicated)
        counts = producer.metrics()
        producer.close()
    say(
        "done",
        records=len(values),
        acknowledged=counts["acknowledged"],
        seconds=seconds,
        value_bytes=sum(map(len, values)),
        batches=counts["batches"],
        resent=counts["resent"],
        checksum=sum(map(crc32c, values)),
    )


def send_all(
    producer: Producer,
    topic: str,
    keys: list[bytes | None],
    values: list[bytes],
    is_replicated: bool,
) -> float:
    """Sends every record and waits for all acknowledgements; returns the seconds that took."""
    step = max(1, len(values) // REPORTS)
    window = WINDOW_STEPS * step if is_replicated else len(values)
    begun = time.monotonic()
    send = producer.send
    for start in range(0, len(values), step):
        stop = start + step
        for key, value in zip(keys[start:stop], values[start:stop], strict=True):
            send(topic, value, key=key)
        while min(stop, len(values)) - (done := producer.metrics()["acknowledged"]) > window:
            time.sleep(PAUSE)
        say("progress", sent=min(stop, len(values)), acknowledged=done)
    producer.flush()
    seconds = time.monotonic() - begun
    say("progress", sent=len(values), acknowledged=producer.metrics()["acknowledged"])
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
