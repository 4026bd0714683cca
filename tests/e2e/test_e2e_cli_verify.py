"""`penstock verify producer|consumer`: the contract that other people's checkers read."""

from __future__ import annotations

import json
import signal

import pytest
from cli_runner import call_cli, cli_process, run_cli
from node_helpers import eventually

from penstock.testing import Broker

SUCCESS = {"timestamp", "name", "key", "value", "topic", "partition", "offset"}


@pytest.fixture(scope="module", autouse=True)
def topics(node):
    for name in ("ledger", "paced", "pinned", "dying"):
        node.create_topic(name, partitions=2)


def named(events, name):
    return [event for event in events if event["name"] == name]


def test_what_the_producer_says_is_what_the_consumer_sees(node):
    sent = run_cli(
        *("verify", "producer", "--topic", "ledger", "--max-messages", "500"),
        *("--value-prefix", "3", "--repeating-keys", "7"),
        url=node.url,
    )
    assert sent.code == 0
    events = sent.objects
    assert [event["name"] for event in events[:1]] == ["startup_complete"]
    assert [event["name"] for event in events[-2:]] == ["shutdown_complete", "tool_data"]
    good = named(events, "producer_send_success")
    assert all(set(event) == SUCCESS for event in good)
    assert {event["value"] for event in good} == {f"3.{number}" for number in range(500)}
    assert {event["key"] for event in good} == set("0123456")
    assert (events[-1]["sent"], events[-1]["acked"]) == (500, 500)
    assert events[-1]["target_throughput"] == -1
    assert events[-1]["avg_throughput"] > 0

    seen = run_cli(
        "verify", "consumer", "--topic", "ledger", "--max-messages", "500", "-v", url=node.url
    )
    assert seen.code == 0
    events = seen.objects
    names = [event["name"] for event in events]
    assert names[:2] == ["startup_complete", "partitions_assigned"]
    assert names[-2:] == ["partitions_revoked", "shutdown_complete"]
    both = [{"topic": "ledger", "partition": 0}, {"topic": "ledger", "partition": 1}]
    assert events[1]["partitions"] == both
    read = named(events, "record_data")
    assert all(set(event) == SUCCESS for event in read)

    def identities(entries):
        names = sorted(SUCCESS - {"timestamp", "name"})
        return sorted([entry[name] for name in names] for entry in entries)

    assert identities(read) == identities(good)
    summaries = named(events, "records_consumed")
    assert sum(event["count"] for event in summaries) == 500
    parts = [part for event in summaries for part in event["partitions"]]
    assert sum(part["count"] for part in parts) == 500
    for part in parts:
        assert part["maxOffset"] - part["minOffset"] == part["count"] - 1


def test_a_signal_ends_both_with_their_last_words(node):
    with (
        cli_process("verify", "consumer", "--topic", "paced", url=node.url) as consumer,
        cli_process(
            "verify", "producer", "--topic", "paced", "--throughput", "50", url=node.url
        ) as producer,
    ):
        acknowledged = 0
        while acknowledged < 10:
            event = json.loads(producer.stdout.readline())
            acknowledged += event["name"] == "producer_send_success"
        producer.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in producer.stdout]
        assert producer.wait(45) == 0
        acknowledged += len(named(rest, "producer_send_success"))
        assert [event["name"] for event in rest[-2:]] == ["shutdown_complete", "tool_data"]
        assert rest[-1]["sent"] == rest[-1]["acked"] == acknowledged
        assert rest[-1]["target_throughput"] == 50

        consumed = 0
        while consumed < acknowledged:
            consumed += json.loads(consumer.stdout.readline()).get("count", 0)
        consumer.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in consumer.stdout]
        assert consumer.wait(45) == 0
        assert [event["name"] for event in rest[-1:]] == ["shutdown_complete"]
    assert consumed == acknowledged


def test_partitions_may_be_named(node):
    base = ("verify", "producer", "--topic", "pinned", "--max-messages", "4", "--acks", "0")
    sent = run_cli(*base, "-p", "1", url=node.url)
    good = named(sent.objects, "producer_send_success")
    assert [(event["partition"], event["offset"]) for event in good] == [(1, -1)] * 4
    seen = run_cli(
        *("verify", "consumer", "--topic", "pinned", "-p", "1", "--max-messages", "4"),
        url=node.url,
    )
    assert named(seen.objects, "partitions_assigned")[0]["partitions"] == [
        {"topic": "pinned", "partition": 1}
    ]


def test_failed_sends_are_events_too():
    with Broker() as node:
        with node.connect() as client:
            client.admin().create_topic("gone")
        with cli_process(
            *("verify", "producer", "--topic", "gone", "--throughput", "20", "--timeout", "1"),
            url=node.url,
        ) as process:
            while json.loads(process.stdout.readline())["name"] != "producer_send_success":
                pass
            node.stop()
            while (event := json.loads(process.stdout.readline()))["name"] != "producer_send_error":
                pass
            process.send_signal(signal.SIGTERM)
            rest = [json.loads(line) for line in process.stdout]
            assert process.wait(45) == 4
    assert set(event) == {"timestamp", "name", "key", "value", "topic", "exception", "message"}
    assert (event["topic"], event["exception"]) == ("gone", "DeliveryTimeout")
    told = rest[-1]
    assert told["name"] == "tool_data"
    assert told["sent"] > told["acked"] > 0


def test_a_reader_that_leaves_ends_the_producer(node):
    with cli_process("verify", "producer", "--topic", "dying", url=node.url) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(45) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["consumer", "--topic", "ledger", "--group", "g", "-p", "0"], 2, "gives out"),
        (["consumer", "--topic", "ledger", "--group", "a b"], 2, "letters, digits"),
        (["consumer", "--topic", "ledger", "--reset-policy", "none"], 2, "earliest"),
        (["consumer", "--topic", "nobody"], 1, "nobody"),
        (["consumer", "--topic", "ledger", "-p", "5"], 1, "partitions 0 to 1"),
        (["producer", "--topic", "ledger", "--transactional-id", "t", "--acks", "0"], 2, "commit"),
        (["producer", "--topic", "ledger", "--acks", "3"], 2, "--acks"),
        (["producer", "--topic", "ledger", "--repeating-keys", "0"], 2, "repeating-keys"),
        (["producer", "--topic", "ledger", "--max-messages", "-2"], 2, "max-messages"),
        (["producer", "--topic", "nobody"], 1, "nobody"),
        (["producer"], 2, "--topic"),
    ],
)
def test_what_is_not_there_is_said_plainly(node, arguments, code, reason):
    ran = call_cli("verify", *arguments, url=node.url)
    assert (ran.code, ran.out) == (code, b"")
    assert reason in ran.err


@pytest.mark.setting("transaction.transactional_id")
def test_a_transactional_producer_tells_what_was_committed(node):
    node.create_topic("exact", partitions=2)
    sent = run_cli(
        *("verify", "producer", "--topic", "exact", "--max-messages", "300"),
        *("--transactional-id", "v", "--transaction-duration-ms", "20", "--abort-every", "3"),
        *("--throughput", "1000"),
        url=node.url,
    )
    assert sent.code == 0
    events = sent.objects
    good = {event["value"] for event in named(events, "producer_send_success")}
    aborted = named(events, "producer_send_error")
    assert {event["exception"] for event in aborted} == {"TransactionAborted"}
    assert good | {event["value"] for event in aborted} == {str(number) for number in range(300)}
    ends = named(events, "transaction_committed"), named(events, "transaction_aborted")
    assert sum(event["records"] for event in ends[0]) == len(good)
    assert ends[1]
    assert all(event["transaction"] % 3 == 0 for event in ends[1])

    listed = run_cli("transaction", "list", "--format", "json", url=node.url).objects
    assert [row["transactional_id"] for row in listed] == ["v"]
    with node.connect() as client:
        admin = client.admin()
        eventually(lambda: admin.list_transactions()[0].state == "ready", "the last marker")
        with client.consumer("exact", isolation="read_committed", follow=False) as consumer:
            assert sorted(int(record.value) for record in consumer) == sorted(map(int, good))
