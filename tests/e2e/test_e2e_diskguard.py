"""The guard of the disk on a small file system: writing stops before it is full, and goes on."""

from __future__ import annotations

from pathlib import Path

from mount_namespace import run_behind

SCRIPT = """
import os, sys
from pathlib import Path
from cli_runner import call_cli
from node_helpers import eventually
from penstock import BufferFullError, DeliveryTimeout, PenstockTimeout
from penstock.testing.embedded import EmbeddedNode

mounted = Path(sys.argv[1])
STOP = 16 << 20
free = lambda: os.statvfs(mounted).f_bavail * os.statvfs(mounted).f_frsize
value = lambda number: b"%08d" % number + b"x" * 10_000
options = ("--disk-warn", "0.6", "--disk-stop", str(STOP))
log = open(mounted.parent / "node.log", "w+b")
with EmbeddedNode(mounted / "data", writers=1, arguments=options, log=log) as node:
    with node.connect() as client:
        admin = client.admin()
        admin.create_topic("t")
        assert admin.describe_topic("t").disk["level"] == "ok"
        sent = 0
        with client.producer(
            buffer_bytes_max=1 << 20, block_timeout=2.0, delivery_timeout=300
        ) as producer, client.consumer("t", start="earliest") as consumer:
            try:
                while True:
                    producer.send("t", value(sent))
                    sent += 1
            except BufferFullError:
                print("held up")
            try:
                producer.flush(0.5)
                raise SystemExit("there was room")
            except PenstockTimeout as error:
                print(error)
            assert 0 < free() < STOP, free()
            described = admin.describe_topic("t")
            assert described.disk["level"] == "full", described
            assert described.partitions[0].status == "storage full", described
            assert described.partitions[0].counters["throttles"] > 0
            shown = call_cli("topic", "describe", "t", url=node.url)
            assert "the disk is full: writing has stopped" in shown.err, shown
            left = free()
            late = client.producer(delivery_timeout=1.0)
            error = late.send("t", b"too late").exception(10)
            assert isinstance(error, DeliveryTimeout) and "storage full" in str(error), error
            late.close()
            assert free() >= left - (1 << 20), "something is still written"
            high = described.partitions[0].high_watermark
            read = 0
            while read < high:  # consumers go on
                batch = consumer.poll(timeout=45)
                assert batch
                for record in batch:
                    assert record.value == value(record.offset)
                read += len(batch)
            (mounted / "ballast").unlink()
            producer.flush(20)
            eventually(lambda: admin.describe_topic("t").partitions[0].status == "online")
            assert admin.describe_topic("t").disk["level"] != "full"
            while read < sent:
                batch = consumer.poll(timeout=45)
                assert batch
                read += sum(record.value != b"too late" for record in batch)
    assert node.stop() == 0
log.seek(0)
lines = log.read().decode()
for part in ("below disk_stop", "writing goes on"):
    assert part in lines, lines
print("all", sent)
"""


def test_writing_stops_before_the_disk_is_full_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    prepare = (
        f"mount -t tmpfs -o size=96m tmpfs {mounted} && "
        f"head -c 30000000 /dev/zero > {mounted}/ballast"
    )
    assert "storage full" in run_behind(prepare, SCRIPT, mounted, timeout=90)
