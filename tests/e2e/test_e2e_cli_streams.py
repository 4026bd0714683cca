"""`penstock produce` and `penstock consume`: bytes in, the same bytes out."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from typing import Any

import pytest
from cli_runner import COMMAND, call_cli, cli_process, environment, run_cli

from penstock.client.admin.admin import TopicConfig
from penstock.testing import Broker, wait_until


@pytest.fixture(scope="module")
def client(node):
    with node.connect() as connected:
        yield connected


@pytest.fixture
def topic(request, client):
    """A topic of the test's own, with two partitions."""
    name = request.node.name.partition("[")[0][-60:] + f"-{time.monotonic_ns()}"
    client.admin().create_topic(name, TopicConfig(partitions=2))
    return name


@pytest.fixture
def produce(node, topic):
    return lambda *arguments, stdin=b"": call_cli(
        "produce", topic, *arguments, url=node.url, stdin=stdin
    )


@pytest.fixture
def consume(node, topic):
    return lambda *arguments: call_cli("consume", topic, *arguments, url=node.url)


def records_in(client, topic):
    return sum(part.high_watermark for part in client.admin().describe_topic(topic).partitions)


# --- produce ---
def test_lines_come_out_as_they_went_in(node, topic):
    text = b"first\n\n\xff\xfe binary\r\n  spaces  \nwithout newline"
    sent = run_cli("produce", topic, "-p", "0", url=node.url, stdin=text)
    assert (sent.code, sent.out) == (0, b"")
    assert sent.err.startswith("5 records acknowledged, 0 failed")
    assert run_cli("consume", topic, url=node.url).out == text + b"\n"


def test_nothing_on_stdin_is_nothing_sent(produce, consume):
    assert produce(stdin=b"").code == 0
    assert consume().out == b""


def test_keys_nulls_headers_and_compression(produce, consume):
    sent = produce(
        *("--key-separator", r"\t", "--null", "-", "-H", "a=1", "-H", "b=", "-z", "lz4", "-p", "1"),
        *("--acks", "-1", "--durability", "fsynced", "--format", "json"),
        stdin=b"k\tv\nplain\nk2\t-\n-\tx\n",
    )
    assert sent.code == 0
    [counts] = sent.objects
    assert (counts["read"], counts["acknowledged"], counts["failed"]) == (4, 4, 0)
    shown = consume("-f", r"%p %o %k=%v [%h] %%\x21\n", "--null", "NIL").lines
    assert shown == [
        "1 0 k=v [a=1,b=] %!",
        "1 1 NIL=plain [a=1,b=] %!",
        "1 2 k2=NIL [a=1,b=] %!",
        "1 3 NIL=x [a=1,b=] %!",
    ]


def test_one_key_is_one_partition(produce, consume):
    assert produce("-k", "same", "--acks", "0", stdin=b"1\n2\n3\n").code == 0

    def found() -> list[Any]:
        entries: list[Any] = consume("--format", "json").objects
        return entries if len(entries) == 3 else []

    entries = wait_until(found, what="what was only in the ring to be in the log")
    assert len({(entry["partition"], entry["key"]) for entry in entries}) == 1


def test_json_lines_make_the_round_trip(client, node, topic, produce, consume):
    given: list[dict[str, Any]] = [
        {
            "value": "text",
            "key": "k",
            "headers": {"h": "1"},
            "timestamp": 1_000_000,
            "partition": 1,
        },
        {"value": None, "key": "gone", "partition": 1, "priority": 0, "dedup_id": "id"},
        {
            "value": "/w==",
            "value_encoding": "base64",
            "partition": 0,
            "due": 1,
            "expires": 2,
            "dedup_id": "/w==",
            "dedup_id_encoding": "base64",
        },
        {"value": {"a": [1]}, "timestamp": "1970-01-01T00:00:02Z", "partition": 0},
        {"value": 7, "headers": [["x", None], ["x", "/w==", "base64"]], "partition": 0},
    ]
    text = b"\n\n".join(json.dumps(entry).encode() for entry in given)
    assert produce("--ndjson", stdin=text).code == 0
    first = consume("--format", "json")
    by_value = {entry["value"]: entry for entry in first.objects}
    assert by_value["text"]["headers"] == [["h", "1"]]
    assert by_value["text"]["timestamp"] == 1_000_000
    assert by_value[None]["key"] == "gone"
    assert by_value["/w=="].items() >= given[2].items()
    assert by_value[None].items() >= given[1].items()
    assert by_value['{"a": [1]}']["timestamp"] == 2_000_000
    assert by_value["7"]["headers"] == [["x", None], ["x", "/w==", "base64"]]

    copy = f"{topic}-copy"
    client.admin().create_topic(copy, TopicConfig(partitions=2))
    assert call_cli("produce", copy, "--ndjson", url=node.url, stdin=first.out).code == 0
    second = call_cli("consume", copy, "--format", "json", url=node.url).objects

    def sorted_records(entries):
        return sorted(({**entry, "topic": ""} for entry in entries), key=json.dumps)

    assert sorted_records(second) == sorted_records(first.objects)


def test_json_lines_that_cannot_be_read_are_counted(produce, consume):
    bad = [
        b"{", b"[]", b'{"val":1}', b'{"value":"=","value_encoding":"base64"}',
        b'{"value":1,"value_encoding":"base64"}', b'{"value":"x","partition":9}',
        b'{"value":"x","partition":-1}', b'{"value":"x","timestamp":-5}',
        b'{"value":"x","headers":[["a"]]}', b'{"value":"x","headers":[["a","b","c"]]}',
        b'{"value":"x","timestamp":"soon"}', b"\xff", b'{"value":"x","priority":10}',
        b'{"value":"x","due":-1}', b'{"value":"x","dedup_id":""}',
    ]  # fmt: skip
    mixed = produce("--ndjson", stdin=b"\n".join([*bad, b'{"value":"good"}']))
    assert mixed.code == 4
    assert f"1 records acknowledged, {len(bad)} failed" in mixed.err
    assert mixed.err.count("penstock: record") == 5
    assert consume().lines == ["good"]
    assert produce("--ndjson", stdin=b"\n".join(bad)).code == 1


def framed(*values):
    return b"".join(
        struct.pack("<I", 0xFFFFFFFF) if value is None else struct.pack("<I", len(value)) + value
        for value in values
    )


def test_length_prefixed_values_may_hold_anything(produce, consume):
    assert produce("--length-prefixed", "-p", "0", stdin=framed(b"a\nb", b"", None)).code == 0
    assert consume("-f", "<%v>", "--null", "NIL").out == b"<a\nb><><NIL>"


@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        (framed(b"whole") + b"\x05\0\0\0cut", 4),
        (framed(b"whole") + b"\x05", 4),
        (b"\xf0\xff\xff\xff", 1),
        (b"plain text, no lengths", 1),
    ],
)
def test_broken_framing_ends_the_input(produce, stdin, code):
    sent = produce("--length-prefixed", stdin=stdin)
    assert sent.code == code
    assert "record" in sent.err
    assert "Traceback" not in sent.err


def test_a_record_that_no_lane_takes_is_refused_alone(produce, consume):
    sent = produce(stdin=b"before\n" + b"x" * (2 << 20) + b"\nafter\n")
    assert sent.code == 4
    assert "record 2" in sent.err
    assert sorted(consume().lines) == ["after", "before"]


def test_memory_stays_bounded_whatever_stdin_brings(node, client, topic):
    """A gigantic line, then far more lines than the producer may hold unacknowledged."""
    block = b"x" * (1 << 20)
    lines = (b"y" * 1023 + b"\n") * 1024
    with cli_process("produce", topic, "--format", "json", url=node.url) as process:
        for _ in range(192):
            process.stdin.write(block)
        process.stdin.write(b"\n")
        for _ in range(96):
            process.stdin.write(lines)
        process.stdin.flush()
        wait_until(lambda: records_in(client, topic) == 96 * 1024, 60.0)
        resident = process.resident_max()
        process.stdin.close()
        counts = json.loads(process.stdout.read())
        assert process.wait(45) == 4
    assert (counts["acknowledged"], counts["refused"]) == (96 * 1024, 1)
    assert resident < 200 << 20, f"{resident >> 20} MiB resident"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_produce_with_everything_read_acknowledged(node, client, topic, stop):
    with cli_process("produce", topic, url=node.url) as process:
        process.stdin.write(b"one\ntwo\nthree\nhalf")
        process.stdin.flush()
        wait_until(lambda: records_in(client, topic) == 3, 45.0)
        process.send_signal(stop)
        assert process.wait(45) == 4
        said = process.stderr.read()
    assert b"3 records acknowledged" in said
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-p", "-1"], 2),
        (["-p", "7"], 1),
        (["--lines", "--ndjson"], 2),
        (["-k", "a", "--key-separator", ":"], 2),
        (["--ndjson", "--key-separator", ":"], 2),
        (["--key-separator", ""], 2),
        (["--key-separator", "\\q"], 2),
        (["-H", "novalue"], 2),
        (["-H", "=v"], 2),
        (["-z", "zip"], 2),
        (["--acks", "2"], 2),
        (["--acks", "0", "--durability", "fsynced"], 2),
        (["--timeout", "0"], 2),
    ],
)
def test_mistakes_before_anything_is_read(node, client, topic, arguments, code):
    ran = call_cli("produce", topic, *arguments, url=node.url)
    assert ran.code == code
    assert ran.err
    assert "Traceback" not in ran.err
    assert records_in(client, topic) == 0


def test_an_unknown_topic_is_told_before_stdin_is_read(node):
    with cli_process("produce", "nobody", url=node.url) as process:
        assert process.wait(45) == 1  # its stdin is still open
        assert b"nobody" in process.stderr.read()
    assert call_cli("consume", "nobody", url=node.url).code == 1


def test_an_unreachable_writer_is_a_timeout(tmp_path):
    with Broker(options={"writer_stall_timeout": 120.0}) as node, node.connect() as client:
        client.admin().create_topic("stuck")
        [writer] = client.admin().describe_node().writers[:1]
        os.kill(writer.pid, signal.SIGSTOP)
        try:
            ran = run_cli("produce", "stuck", "--timeout", "1", url=node.url, stdin=b"x\n")
        finally:
            os.kill(writer.pid, signal.SIGCONT)
    assert ran.code == 3
    assert "0 records acknowledged, 1 failed" in ran.err


# --- consume ---
@pytest.fixture
def numbered(client, topic):
    """Ten records, 0 to 9, in partition 0; one in partition 1."""
    with client.producer() as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
        producer.send(topic, b"other", partition=1)
    return topic


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-o", "start", "-n", "2"], ["0", "1"]),
        (["-o", "7"], ["7", "8", "9"]),
        (["-o", "10"], []),
        (["-o", "+8"], ["8", "9"]),
        (["-o", "-3"], ["7", "8", "9"]),
        (["-o", "-99", "-n", "1"], ["0"]),
        (["-o", "end"], []),
        (["-o", "@0", "-n", "1"], ["0"]),
        (["-o", "@2100-01-01"], []),
        (["-n", "0"], []),
    ],
)
def test_where_consume_begins_and_ends(consume, arguments, expected):
    ran = consume("-p", "0", *arguments)
    assert (ran.code, ran.lines) == (0, expected)


@pytest.mark.usefixtures("numbered")
def test_all_partitions_or_some(consume):
    assert sorted(consume().lines) == [*map(str, range(10)), "other"]
    assert consume("-p", "1").lines == ["other"]
    assert len(consume("-p", "0", "-p", "1", "-n", "11").lines) == 11


def test_a_time_finds_the_records_from_then_on(produce, consume):
    for second in (1000, 2000):
        line = json.dumps({"value": str(second), "timestamp": second * 10**6, "partition": 0})
        assert produce("--ndjson", stdin=line.encode()).code == 0
    assert consume("-p", "0", "-o", "@1500").lines == ["2000"]
    assert consume("-p", "0", "-o", "@1970-01-01T00:16:40Z").lines == ["1000", "2000"]


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-o", "11", "-p", "0"], 1),
        (["-o", "x"], 2),
        (["-o", "-"], 2),
        (["-o", "--1"], 2),
        (["-o", "@"], 2),
        (["-o", "@yesterday"], 2),
        (["-o", "@-5"], 2),
        (["-o", "@nan"], 2),
        (["-o", "9" * 30], 2),
        (["-n", "-1"], 2),
        (["-p", "-1"], 2),
        (["-p", "2"], 1),
        (["-f", "%q"], 2),
        (["-f", "nothing"], 2),
        (["-f", "%v\\"], 2),
        (["-f", "%v%"], 2),
        (["-f", "%v", "--format", "json"], 2),
    ],
)
def test_mistakes_of_consume(consume, arguments, code):
    ran = consume(*arguments)
    assert (ran.code, ran.out) == (code, b"")
    assert "Traceback" not in ran.err


@pytest.mark.usefixtures("numbered")
def test_following_ends_after_so_many_or_so_much_silence(consume):
    assert consume("--follow", "-n", "11").code == 0
    silent = consume("--follow", "-n", "12", "--timeout", "3")
    assert (silent.code, len(silent.lines)) == (3, 11)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_following_shows_what_comes_until_a_signal(node, client, topic, stop):
    with cli_process("consume", topic, "--follow", url=node.url) as process:
        with client.producer(linger=0) as producer:
            for number in range(3):
                producer.send_and_wait(topic, b"%d" % number)
                assert process.stdout.readline() == b"%d\n" % number
        process.send_signal(stop)
        assert process.wait(45) == 0
        assert process.stderr.read() == b""


def test_a_reader_that_has_enough_is_no_error(node, client, topic):
    with client.producer() as producer:
        producer.send_batch(topic, [b"x" * 100] * 20_000)
    with cli_process("consume", topic, url=node.url) as process:
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert process.wait(45) == 0
        assert process.stderr.read() == b""


@pytest.mark.usefixtures("numbered")
def test_stdout_that_is_closed_or_full_is_an_error(node, topic):
    def shell(redirection):
        command = f'"$@" {redirection}'
        arguments = ["sh", "-c", command, "sh", *COMMAND, "consume", topic]
        return subprocess.run(
            arguments, env=environment(node.url), stderr=subprocess.PIPE, timeout=30, check=False
        )

    for redirection, reason in ((">&-", b"closed"), (">/dev/full", b"space")):
        ran = shell(redirection)
        assert ran.returncode == 1
        assert reason in ran.stderr
        assert b"Traceback" not in ran.stderr
        assert ran.stderr.count(b"\n") == 1


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
def test_what_has_no_transaction_is_committed(topic, produce, consume, isolation):
    produce("-p", "0", stdin=b"a\nb\n")
    assert consume("--isolation", isolation).out == b"a\nb\n"
