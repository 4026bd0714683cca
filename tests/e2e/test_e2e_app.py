"""Apps: handlers run by real members of groups, and by `penstock run` in processes of their own."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from cli_runner import cli_process, run_cli

from penstock import (
    App,
    DecodeError,
    DeliveryError,
    Job,
    PenstockTimeout,
    Record,
    Retry,
    UnknownTopicError,
)
from penstock.testing import drain, produce, wait_until

PROGRAM = """
import time
import penstock

app = penstock.App()

@app.consumer("{source}", group="{source}", concurrency={concurrency}, commit_interval=0.05)
def bill(order: int, record: penstock.Record) -> None:
    if order % 100 == 0:
        time.sleep(0.01)
    app.send("{target}", record.value, key=record.key)
"""


@pytest.fixture
def topic(node):
    return node.create_topic(partitions=3)


@pytest.fixture
def app(node):
    return App(node.url)


def numbers(count: int, first: int = 0) -> list[tuple[bytes, bytes]]:
    return [(b"%d" % (n % 50), b"%d" % n) for n in range(first, first + count)]


def program(folder: Path, source: str, target: str, concurrency: int = 1) -> None:
    (folder / "billing.py").write_text(
        PROGRAM.format(source=source, target=target, concurrency=concurrency)
    )


def committed(node, group: str) -> int:
    with node.connect() as client, client.admin() as admin:
        return sum(part.committed or 0 for part in admin.describe_group(group).partitions)


def values(node, topic: str) -> Counter[int]:
    return Counter(int(record.value or b"") for record in drain(node, topic))


def test_a_handler_gets_each_record_once_and_what_it_sends_arrives(node, app, topic):
    target = node.create_topic()
    seen: list[int] = []

    @app.consumer(topic, group=topic, concurrency=3)
    def double(number: int) -> None:
        seen.append(number)
        app.send(target, b"%d" % (2 * number))

    produce(node, topic, numbers(300))
    with app:
        wait_until(lambda: len(seen) == 300)
    assert sorted(seen) == list(range(300))
    assert values(node, target) == Counter(range(0, 600, 2))
    assert committed(node, topic) == 300
    assert app.metrics() == {"handled": 300, "retried": 0, "skipped": 0, "dead_letters": 0}


def test_an_async_handler_is_awaited(node, app, topic):
    import asyncio

    seen: list[str] = []

    @app.consumer(topic, group=topic, follow=False)
    async def note(value: str) -> None:
        await asyncio.sleep(0)
        seen.append(value)

    produce(node, topic, [b"a"])
    app.run()  # ends at the ends that the topic has
    assert seen == ["a"]


def test_a_failing_handler_is_tried_again_and_then_passed_over(node, app, topic, caplog):
    caplog.set_level("WARNING", "penstock.app")
    tries: Counter[int] = Counter()

    @app.consumer(topic, group=topic, retries=2, retry_backoff=0.001, on_error="skip", follow=False)
    def fail(number: int) -> None:
        tries[number] += 1
        if number == 1 or (number == 2 and tries[2] < 3):
            raise RuntimeError("no such customer")

    produce(node, topic, [b"0", b"1", b"poison", b"2", b"3", b"poison"])
    app.run()
    assert tries == {0: 1, 1: 3, 2: 3, 3: 1}
    assert app.metrics() == {"handled": 3, "retried": 4, "skipped": 3, "dead_letters": 0}
    skipped = [each for each in caplog.records if "which is skipped: " in each.getMessage()]
    assert sorted(bool(each.exc_info) for each in skipped) == [False, True, True]
    assert committed(node, topic) == 6


def test_stop_ends_the_app_with_the_error_and_the_record_comes_again(node, app):
    topic = node.create_topic()
    seen: list[str] = []

    @app.consumer(topic, group=topic, follow=False)
    def refuse(value: str) -> None:
        seen.append(value)
        if value == "2" and seen.count("2") == 1:
            raise RuntimeError("no such customer")

    produce(node, topic, [b"0", b"1", b"2", b"3"])
    with pytest.raises(RuntimeError, match="no such customer") as caught:
        app.run()
    assert f"{topic}-0 offset 2" in caught.value.__notes__[0]
    assert committed(node, topic) == 2
    app.run()
    assert seen == ["0", "1", "2", "2", "3"]


def test_what_a_handler_sent_in_vain_is_not_committed(node, app, topic):
    gone = node.create_topic()

    @app.consumer(topic, group=topic, follow=False)
    def send(record: Record) -> None:
        app.send(gone, b"arrives").result(20)
        with node.connect() as client, client.admin() as admin:
            admin.delete_topic(gone)
        app.send(gone, b"does not")

    produce(node, topic, [b"0"])
    with pytest.raises(DeliveryError):
        app.run()
    assert committed(node, topic) == 0


def test_errors_of_the_app_itself_stop_it_and_skip_no_record(node, app, topic, caplog):
    missing = "not-there-" + topic

    @app.consumer(topic, group=topic, on_error="skip", follow=False)
    def send(value: str) -> None:
        app.send(
            topic if value == "large" else missing, b"x" * (2 << 20 if value == "large" else 1)
        )

    produce(node, topic, [(b"k", b"large"), (b"k", b"good"), (b"k", b"good")])
    with pytest.raises(UnknownTopicError, match=missing) as caught:
        app.run()
    assert "offset 1" in caught.value.__notes__[0]
    assert "has stopped, by UnknownTopicError(" in caplog.text
    assert "offset 1; the record is not skipped, for it is not at fault" in caplog.text
    assert app.metrics() == {"handled": 0, "retried": 0, "skipped": 1, "dead_letters": 0}
    assert committed(node, topic) == 1


def test_a_worker_that_stops_while_the_app_goes_on_is_told_of_at_once(node, app, topic, caplog):
    @app.consumer(topic, group=topic)
    def refuse(value: str) -> None:
        raise RuntimeError("no such customer")

    produce(node, topic, [b"x"])
    app.start()
    wait_until(lambda: "refuse has stopped, by RuntimeError('no such" in caplog.text)
    assert "offset 0" in caplog.text
    with pytest.raises(RuntimeError, match="no such customer"):
        app.close()


def test_a_record_that_is_none_is_not_tried_again(node, app, topic):
    @app.consumer(topic, group=topic, retries=1000)
    def never(value: dict[str, str]) -> None: ...

    produce(node, topic, [b"no json"])
    with pytest.raises(DecodeError, match="cannot be decoded for"):
        app.run()


def test_a_stop_does_not_wait_for_the_next_try(node, app, topic):
    @app.consumer(topic, group=topic, retries=1000, retry_backoff=3600.0, retry_backoff_max=3600.0)
    def fail(record: Record) -> None:
        raise RuntimeError("later")

    produce(node, topic, [b"x"])
    with app:
        wait_until(lambda: app.metrics()["retried"])
    assert committed(node, topic) == 0


def either(function, is_async: bool):
    """The function, or a coroutine function that does the same."""

    async def awaited(number: int) -> None:
        function(number)

    return awaited if is_async else function


@pytest.mark.parametrize("is_async", [False, True])
def test_with_retry_topics_a_bad_record_holds_up_no_other(node, app, topic, is_async):
    target = node.create_topic()
    tries: Counter[int] = Counter()

    def bill(number: int) -> None:
        tries[number] += 1
        if number == 1 or (number == 2 and tries[2] == 1):
            raise RuntimeError("no such customer")
        app.send(target, b"%d" % number)

    retry = Retry(max=2, backoff=(0.0, 0.02))
    app.consumer(topic, group=topic, retry=retry, concurrency=2)(either(bill, is_async))
    produce(node, topic, [b"0", b"1", b"poison", b"2", b"3"])
    with app:
        wait_until(lambda: app.metrics()["dead_letters"] == 2 and app.metrics()["handled"] == 3)
    assert tries == {0: 1, 1: 3, 2: 2, 3: 1}
    assert app.metrics() == {"handled": 3, "retried": 3, "skipped": 0, "dead_letters": 2}
    assert values(node, target) == Counter([0, 2, 3])
    assert {each.value for each in drain(node, topic + ".dlq")} == {b"1", b"poison"}
    assert committed(node, topic) >= 5


def leased(node, group: str) -> dict[str, int]:
    with node.connect() as client, client.admin() as admin:
        parts = admin.describe_share_group(group).partitions
    return {
        "todo": sum(part.ready + part.waiting + part.leased + part.condemned for part in parts),
        "done": sum(part.floor for part in parts),
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_jobs_of_a_share_group_are_answered_for_by_their_app(node, app, topic, is_async):
    target = node.create_topic()
    tries: Counter[int] = Counter()

    def resize(number: int) -> None:
        tries[number] += 1
        if number == 1 or (number == 2 and tries[2] == 1):
            raise RuntimeError("no such image")
        app.send(target, b"%d" % number)

    app.share_consumer(
        topic, group=topic, concurrency=2, max_deliveries=2, backoff=(0.01, 0.01)
    )(either(resize, is_async))  # fmt: skip
    produce(node, topic, [b"0", b"1", b"poison", b"2", b"3"])
    with app:
        wait_until(lambda: leased(node, topic) == {"todo": 0, "done": 5})
    assert tries == {0: 1, 1: 2, 2: 2, 3: 1}
    assert app.metrics() == {"handled": 3, "retried": 3, "skipped": 0, "dead_letters": 1}
    assert values(node, target) == Counter([0, 2, 3])
    assert {each.value for each in drain(node, topic + ".dlq")} == {b"1", b"poison"}


def test_a_job_is_given_to_who_wants_all_of_it_and_a_stop_gives_the_others_back(node, app):
    topic = node.create_topic()
    seen: list[tuple[str, int]] = []
    begun, ended = threading.Event(), threading.Event()

    @app.share_consumer(topic, group=topic)
    def work(value: str, job: Job) -> None:
        seen.append((value, job.deliveries))
        if len(seen) == 3:  # by now it takes several at a time
            begun.set()
            ended.wait(20)

    produce(node, topic, [b"%d" % number for number in range(20)])
    app.start()
    assert begun.wait(20)
    stopper = threading.Thread(target=app.close)
    stopper.start()
    wait_until(app._stopping.is_set)
    ended.set()
    stopper.join(20)
    assert leased(node, topic)["done"] == 3
    with app:
        wait_until(lambda: leased(node, topic)["done"] == 20)
    assert seen == [(str(number), 1) for number in range(20)]


def test_a_job_whose_records_are_nowhere_comes_again(node, app, topic):
    gone = node.create_topic()

    @app.share_consumer(topic, group=topic)
    def send(job: Job) -> None:
        app.send(gone, b"arrives").result(20)
        with node.connect() as client, client.admin() as admin:
            admin.delete_topic(gone)
        app.send(gone, b"does not")

    produce(node, topic, [b"0"])
    with pytest.raises(DeliveryError):
        app.run()
    assert leased(node, topic)["todo"] == 1


def test_a_handler_that_does_not_end_is_named(node, topic):
    app = App(node.url, stop_timeout=0.05)
    begun, ended = threading.Event(), threading.Event()

    @app.consumer(topic, group=topic)
    def hang(record: Record) -> None:
        begun.set()
        ended.wait(60)

    produce(node, topic, [b"x"])
    app.start()
    assert begun.wait(20)
    with pytest.raises(PenstockTimeout, match=rf"hang of group {topic} at {topic}-\d offset 0"):
        app.close()
    ended.set()
    wait_until(lambda: not [each for each in threading.enumerate() if "hang" in each.name])


def test_a_worker_that_is_killed_loses_nothing(node, topic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = node.create_topic()
    program(tmp_path, topic, target)
    produce(node, topic, numbers(3000))
    with (
        cli_process("run", "billing:app", url=node.url) as first,
        cli_process("run", "billing:app", url=node.url),
    ):
        wait_until(lambda: len(drain(node, target)) > 100)
        os.kill(first.pid, signal.SIGKILL)
        produce(node, topic, numbers(1000, 3000))
        wait_until(lambda: committed(node, topic) == 4000)
    assert values(node, target).keys() == set(range(4000))


def test_sigterm_under_load_loses_nothing_and_doubles_nothing(node, topic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = node.create_topic()
    program(tmp_path, topic, target, concurrency=2)

    def has_more(than: int) -> bool:
        return len(drain(node, target)) > than

    with node.connect() as client, client.producer() as producer:
        for number in range(3):
            with cli_process("run", "billing:app", url=node.url) as running:
                before = len(drain(node, target))
                for key, value in numbers(1000, 1000 * number):
                    producer.send(topic, value, key=key)
                wait_until(partial(has_more, before + 50))
                running.send_signal(signal.SIGTERM)
                assert running.wait(30) == 0
    done = values(node, target)
    assert set(done.values()) == {1}
    assert committed(node, topic) == len(done)


def test_run_says_which_app_there_is_not(tmp_path, node):
    (tmp_path / "shop.py").write_text("import penstock\nmine = penstock.App()\n")
    for target, said in [
        ("shop", "name an app by MODULE:APP, such as billing:app"),
        ("shop:app", "module 'shop' has no penstock.App named 'app': it has mine"),
        ("nowhere:app", "there is no module 'nowhere' in"),
        ("shop:mine", "the app has no handlers"),
    ]:
        ran = run_cli("run", target, url=node.url, env={"PYTHONPATH": str(tmp_path)})
        assert (ran.code, said in ran.err) == (2, True), ran.err


def test_at_most_once_is_committed_before_it_is_handled(node, app, topic):
    target = node.create_topic()
    before: list[int] = []

    @app.consumer(topic, group=topic, guarantee="at-most-once")
    def handle(number: int) -> None:
        if number == 150:
            before.append(committed(node, topic))
        app.send(target, b"%d" % number)

    produce(node, topic, numbers(300))
    with app:
        wait_until(lambda: app.metrics()["handled"] == 300)
        assert before[0] >= 1
    with node.connect() as client, client.admin() as admin:
        assert admin.describe_group(topic).guarantee == "at-most-once"
    assert values(node, target) == Counter(range(300))
    assert committed(node, topic) == 300


def test_at_most_once_a_record_that_fails_does_not_come_again(node, app):
    topic = node.create_topic()
    seen: list[int] = []

    @app.consumer(topic, group=topic, guarantee="at_most_once")
    def fail(number: int) -> None:
        seen.append(number)
        if number == 5:
            raise ValueError("five")

    produce(node, topic, numbers(6))
    with pytest.raises(ValueError, match="five"):
        app.run()
    assert seen == list(range(6))
    produce(node, topic, numbers(3, first=6))
    with app:
        wait_until(lambda: seen[-1] == 8)
    assert seen == list(range(9))


def test_at_most_once_what_was_claimed_is_worked_off_at_a_stop(node, app):
    topic = node.create_topic()
    seen: list[int] = []

    @app.consumer(topic, group=topic, guarantee="at-most-once")
    def handle(number: int) -> None:
        seen.append(number)
        if number == 700:
            app.stop()

    produce(node, topic, numbers(1000))
    app.run()
    assert seen == list(range(committed(node, topic)))
    assert len(seen) > 700
