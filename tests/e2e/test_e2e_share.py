"""Workers of a share group at a real node: each record to one at a time, until it is done."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from cli_runner import environment
from event_loops import run

from penstock import aio
from penstock.client.share import acquirer
from penstock.core import errors as er
from penstock.ipc.doorbell import Backoff
from penstock.testing import Broker, produce, wait_until

pytestmark = pytest.mark.over_tcp

WITHIN = 25.0
GROUPS = (f"workers-{number}" for number in itertools.count())

ENDS = """
import sys, penstock
url, topic, group = sys.argv[1:]
jobs = penstock.connect(url).share_consumer(topic, group=group)
held = []
while len(held) < 4:
    held += jobs.poll(4 - len(held), timeout=1.0)
jobs.ack_many(held[:3])
"""

HOLDS = """
import sys, time, penstock
url, topic, group, count = sys.argv[1:]
jobs = penstock.connect(url).share_consumer(topic, group=group)
held = []
while len(held) < int(count):
    held += jobs.poll(int(count) - len(held), timeout=1.0)
print(",".join(str(job.offset) for job in held), flush=True)
time.sleep(3600)
"""


class Work:
    """Makes workers of one group."""

    def __init__(self, client, topic):
        self.client = client
        self.topic = topic
        self.group = next(GROUPS)

    def __call__(self, *topics, **options):
        topics = topics or (self.topic,)
        return self.client.share_consumer(*topics, **{"group": self.group, **options})


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node):
    return node.create_topic()


@pytest.fixture
def work(client, topic):
    """Makes workers of one group of the test's own."""
    return Work(client, topic)


def numbers(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def all_of(jobs, count, max_records=None):
    """So many jobs, by as many polls as it takes."""
    found = []

    def came():
        found.extend(jobs.poll(max_records, timeout=0.2))
        return len(found) >= count

    wait_until(came, WITHIN, lambda: f"{len(found)} of {count} jobs, {jobs.metrics()}")
    return found


def offsets(jobs):
    return [job.offset for job in jobs]


def test_two_workers_share_a_partition_and_each_record_comes_once(node, topic, work):
    produce(node, topic, numbers(3000))
    with work() as one, work() as two:
        came: dict[Any, list[int]] = {one: [], two: []}
        while sum(map(len, came.values())) < 3000:
            for worker, found in came.items():
                jobs = worker.poll(70, timeout=0.05)
                worker.ack_many(jobs)
                found += offsets(jobs)
        assert sorted(came[one] + came[two]) == list(range(3000))
        assert min(len(found) for found in came.values()) > 500
        one.flush()
        two.flush()
        assert one.poll(timeout=0.0) == two.poll(timeout=0.0) == []
        assert one.metrics()["stale"] == two.metrics()["stale"] == 0


def test_a_job_has_its_record_and_a_loop_hands_out_one_by_one(node, client, topic, work):
    with client.producer() as producer:
        for number in range(2000):
            producer.send(topic, b"%d" % number, key=b"k", headers={"h": b"x"}, timestamp=number)
    came = []
    with work(ack_interval=0.001) as jobs:
        for job in jobs:
            with job:
                assert (job.topic, job.partition, job.timestamp) == (topic, 0, job.offset)
                assert (job.key, job.headers, job.deliveries) == (b"k", (("h", b"x"),), 1)
                came.append(job.value)
            if len(came) == 2000:
                break
        assert came == numbers(2000)
        counts = jobs.metrics()
    assert counts["acked"] == counts["acquired"] == 2000
    assert counts["requests"] < 1000, "answers go together"


def test_what_failed_comes_again_after_its_delay_and_counts(node, topic, work):
    produce(node, topic, numbers(2))
    with work(backoff=(60.0, 60.0)) as jobs:
        first, second = all_of(jobs, 2)
        begun = time.monotonic()
        first.nack(delay=0.2, reason="not yet")
        with pytest.raises(ValueError, match="bad"), second:
            raise ValueError("bad")
        [again] = all_of(jobs, 1)
        assert time.monotonic() - begun >= 0.2
        assert (again.offset, again.deliveries) == (0, 2)
        again.ack()
        jobs.flush()
        assert jobs.metrics()["nacked"] == 2


def test_a_release_counts_for_nothing_and_wakes_another_worker(node, topic, work):
    produce(node, topic, numbers(3))
    with work() as one, work() as two:
        held = all_of(one, 3)
        assert two.poll(timeout=0.0) == []
        found = []
        waiting = threading.Thread(target=lambda: found.extend(two.poll(timeout=WITHIN)))
        waiting.start()
        for job in held[:2]:
            job.release()
        held[2].ack()
        one.flush()
        waiting.join()
        found += all_of(two, 2 - len(found)) if len(found) < 2 else []
        assert [(job.offset, job.deliveries) for job in found] == [(0, 1), (1, 1)]
        two.ack_many(found)


def test_close_releases_what_is_not_answered_handed_out_or_not(node, topic, work):
    produce(node, topic, numbers(10))
    with work() as one:
        jobs = iter(one)
        next(jobs).ack()
        next(jobs)
        job = next(jobs)
        one.poll(2)
    job.ack()  # too late: it was given back
    assert one.metrics()["stale"] == 1
    with pytest.raises(er.ClosedError):
        one.poll()
    one.close()
    with work() as two:
        found = all_of(two, 9)
        assert [(job.offset, job.deliveries) for job in found] == [(n, 1) for n in range(1, 10)]


def test_what_cannot_be_done_goes_to_the_topic_of_dead_letters(node, client, topic, work):
    with client.producer() as producer:
        producer.send(topic, b"broken", key=b"k", headers={"own": b"1"}, timestamp=77)
        producer.send(topic, b"hopeless")
        producer.send(topic, b"good")
    with work(max_deliveries=2, backoff=(0.0, 0.0)) as jobs:
        broken, hopeless, good = all_of(jobs, 3)
        broken.nack(reason="first")
        hopeless.reject("nobody can")
        good.ack()
        [again] = all_of(jobs, 1)
        assert (again.offset, again.deliveries) == (0, 2)
        again.nack(reason="second")

        def buried():
            assert jobs.poll(timeout=0.05) == []
            return jobs.metrics()["buried"] == 2

        wait_until(buried, WITHIN, lambda: jobs.metrics())
        member = jobs.member_id
    with client.consumer(f"{topic}.dlq", follow=False) as consumer:
        letters = {record.value: record for record in consumer}
    assert letters.keys() == {b"broken", b"hopeless"}
    headers = dict(letters[b"broken"].headers)
    assert letters[b"broken"].key == b"k"
    history = json.loads(headers.pop("penstock.dlq.history"))
    assert headers == {
        "own": b"1",
        "penstock.dlq.topic": topic.encode(),
        "penstock.dlq.partition": b"0",
        "penstock.dlq.offset": b"0",
        "penstock.dlq.timestamp": b"77",
        "penstock.dlq.group": work.group.encode(),
        "penstock.dlq.deliveries": b"2",
        "penstock.dlq.reason": b"second",
    }
    assert [(one["member"], one["reason"]) for one in history] == [
        (member, "first"), (member, "second"),
    ]  # fmt: skip
    assert dict(letters[b"hopeless"].headers)["penstock.dlq.reason"] == b"nobody can"


def test_without_a_topic_for_dead_letters_nothing_is_kept(node, client, topic, work):
    produce(node, topic, numbers(1))
    with work(dead_letters=None) as jobs:
        all_of(jobs, 1)[0].reject()
        wait_until(lambda: not jobs.poll(timeout=0.02) and jobs.metrics()["buried"], WITHIN, "it")
    assert f"{topic}.dlq" not in client.admin().list_topics()


def test_what_a_killed_worker_had_comes_to_another(node, topic, work):
    produce(node, topic, numbers(4))
    with work(session_timeout=1.0) as jobs:
        command = [sys.executable, "-c", HOLDS, node.url, topic, work.group, "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"0,1,2,3\n"
                assert jobs.poll(timeout=0.0) == []
            finally:
                os.kill(process.pid, signal.SIGKILL)
        found = []
        for _ in range(4):  # they come one by one: which of them ended it nobody knows
            [job] = all_of(jobs, 1)
            found.append((job.offset, job.deliveries))
            job.ack()
        assert found == [(n, 2) for n in range(4)]


def test_a_program_that_ends_without_close_has_answered_and_gives_the_rest_back(node, topic, work):
    produce(node, topic, numbers(6))
    command = [sys.executable, "-c", ENDS, node.url, topic, work.group]
    subprocess.run(command, env=environment(), check=True, timeout=WITHIN)
    with work() as jobs:
        found = all_of(jobs, 3)
        assert [(job.offset, job.deliveries) for job in found] == [(3, 1), (4, 1), (5, 1)]


def test_a_dead_letter_that_cannot_be_written_holds_up_no_other(node, client, work):
    topic, bounded = node.create_topic(), f"bounded-{next(GROUPS)}"
    client.admin().create_topic(bounded, record_bytes_max=1000)
    produce(node, topic, [b"x" * 2000, b"small"])
    with work(topic, dead_letters=bounded) as jobs:
        for job in all_of(jobs, 2):
            job.reject("no")

        def written():
            assert jobs.poll(timeout=0.05) == []
            counts = jobs.metrics()
            return counts["dead_letter_failures"] and counts["buried"]

        wait_until(written, WITHIN, lambda: jobs.metrics())
    with client.consumer(bounded, follow=False) as consumer:
        assert [record.value for record in consumer] == [b"small"]


def test_aborted_records_and_markers_are_no_jobs(node, client, topic, work):
    with client.producer(transactional_id=f"tx-{topic}") as producer:
        with producer.transaction():
            producer.send(topic, b"committed")
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"too")
    with work() as jobs:
        found = all_of(jobs, 2)
        assert [job.value for job in found] == [b"committed", b"too"]
        jobs.ack_many(found)
        jobs.flush()
        assert jobs.poll(timeout=0.1) == []
        jobs.flush()
        assert jobs.metrics()["skipped"] >= 3, "markers and what was aborted"
    with work() as other:  # nothing of that was left to be given back
        assert other.poll(timeout=0.0) == []
        assert other.metrics()["acquired"] == 0


def test_threads_answer_while_another_polls(node, topic, work):
    produce(node, topic, numbers(400))
    with work() as jobs:
        came, lock = [], threading.Lock()

        def done(job):
            with lock:
                came.append(job.offset)
            job.ack()

        threads: list[threading.Thread] = []
        while len(threads) < 400:
            for job in jobs.poll(40, timeout=0.1):
                thread = threading.Thread(target=done, args=(job,))
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()
        wait_until(lambda: jobs.poll(timeout=0.05) == [] and jobs.metrics()["acked"] == 400, 9, "")
        assert sorted(came) == list(range(400))
    with work() as other:
        assert other.poll(timeout=0.1) == []


def test_a_worker_that_waits_gets_new_records_of_all_partitions(node, client, work):
    topic = node.create_topic(partitions=3)
    with work(topic) as jobs:
        assert jobs.poll(timeout=0.0) == []
        found = []
        waiting = threading.Thread(target=lambda: found.extend(jobs.poll(timeout=WITHIN)))
        waiting.start()
        with client.producer() as producer:
            for partition in range(3):
                producer.send(topic, b"x", partition=partition)
        waiting.join()
        found += all_of(jobs, 3 - len(found)) if len(found) < 3 else []
        assert sorted((job.partition, job.offset) for job in found) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("order", [None, "key"])
def test_a_worker_is_leased_records_of_a_partition_that_is_new_to_it(node, client, work, order):
    """Another worker has told the coordinator of it, before this one has looked."""
    topic = node.create_topic(partitions=1)
    with work(topic, order=order) as jobs:
        assert jobs.poll(timeout=0.0) == []
        client.admin().alter_topic(topic, partitions=2)
        with client.producer() as producer:
            for number in range(9):
                producer.send(topic, b"x", key=b"%d" % number, partition=1)
        with work(topic, order=order) as other:
            for job in all_of(other, 9):
                job.release()
        found = all_of(jobs, 9)
        assert {(job.partition, job.offset) for job in found} == {(1, at) for at in range(9)}


def test_latest_begins_with_what_comes_from_now_on(node, topic, work):
    produce(node, topic, numbers(5))
    with work(start="latest") as jobs:
        assert jobs.poll(timeout=0.0) == []
        produce(node, topic, [b"new"])
        assert [job.value for job in all_of(jobs, 1)] == [b"new"]


@pytest.mark.over_tcp(False)
def test_answers_and_leases_outlive_the_node():
    with Broker(writers=1) as broker, broker.connect() as client:
        topic = broker.create_topic()
        produce(broker, topic, numbers(9))
        with client.share_consumer(topic, group="durable") as jobs:
            held = all_of(jobs, 6, 6)
            jobs.ack_many(held[:3])
            jobs.flush()
            broker.kill()
            broker.start()
            jobs.ack_many(held[3:5])  # of before: the same worker holds them
            rest = all_of(jobs, 3)
            assert offsets(rest) == [6, 7, 8]
            jobs.ack_many(rest)
            jobs.flush()
            assert jobs.metrics()["stale"] == 0
        with client.share_consumer(topic, group="durable") as jobs:
            assert [(job.offset, job.deliveries) for job in all_of(jobs, 1)] == [(5, 1)]


def test_what_retention_took_before_anybody_had_it_is_counted(node, client, topic, work):
    produce(node, topic, numbers(10))
    with work() as first:
        first.ack_many(all_of(first, 2, 2))
    client.admin().trim(topic, before=6)
    with work() as jobs:
        found = all_of(jobs, 4)
        assert offsets(found) == [6, 7, 8, 9]
        jobs.ack_many(found)
        jobs.flush()
        assert jobs.metrics()["expired"] == 4


def test_a_topic_that_goes_and_comes_again_is_worked_on(node, client, work):
    name = node.create_topic()
    produce(node, name, numbers(3))
    with work(name) as jobs:
        old = all_of(jobs, 3)
        client.admin().delete_topic(name)
        client.admin().create_topic(name)
        produce(node, name, [b"again"])
        assert [job.value for job in all_of(jobs, 1)] == [b"again"]
        jobs.ack_many(old)
        assert jobs.metrics()["stale"] == 3


def test_records_of_a_topic_that_was_made_again_are_nobody_elses(node, client, work, monkeypatch):
    """A worker that knows the topic by the id of before is leased them, and does not keep them."""
    name = node.create_topic()
    with work(name) as jobs:
        assert jobs.poll(timeout=0.0) == []
        monkeypatch.setattr(jobs._lease_reader, "is_gone", lambda: False)  # it has not seen it yet
        client.admin().delete_topic(name)
        client.admin().create_topic(name)
        produce(node, name, numbers(9))
        with work(name) as other:
            for job in all_of(other, 9):
                job.release()
        found = all_of(jobs, 9)
        assert sorted(offsets(found)) == [*range(9)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dead_letters": "{topic}"}, er.ConfigError),
        ({"dead_letters": 5}, TypeError),
        ({"max_deliveries": 0}, er.ConfigError),
        ({"max_deliveries": 1.5}, TypeError),
        ({"backoff": (2.0, 1.0)}, er.ConfigError),
        ({"backoff": 1.0}, TypeError),
        ({"start": "now"}, er.ConfigError),
        ({"group": "a b"}, er.ConfigError),
        ({"max_records": 0}, er.ConfigError),
        ({"max_record": 1}, TypeError),
    ],
)
def test_bad_options_are_refused_by_name(work, options, error):
    with pytest.raises(error, match=next(iter(options))):
        work(**options)


def test_a_topic_that_is_not_there_is_named(client):
    with pytest.raises(er.UnknownTopicError, match="nowhere"):
        client.share_consumer("nowhere", group="g")
    with pytest.raises(TypeError, match="group="):
        client.share_consumer("nowhere")


def test_a_forked_child_has_no_worker(node, topic, work):
    produce(node, topic, numbers(1))
    with work() as jobs:
        [job] = all_of(jobs, 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                jobs.poll()
            except er.ForkedClientError:
                jobs.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        job.ack()
        jobs.flush()
        assert jobs.metrics()["stale"] == 0


def test_in_an_event_loop(node, topic, work):
    produce(node, topic, numbers(300))

    async def main():
        async with aio.connect(node.url) as client:
            options = {"group": work.group, "backoff": (0.0, 0.0)}
            async with client.share_consumer(topic, **options) as jobs:
                batch = await jobs.poll(100, timeout=WITHIN)
                jobs.ack_many(batch)
                waiting = asyncio.create_task(jobs.poll(timeout=None))
                more = await waiting
                came = len(batch) + len(more)
                jobs.ack_many(more)
                await jobs.flush()
                failed = False
                if came < 300:
                    async for job in jobs:
                        try:
                            with job:
                                if not failed:
                                    failed = True
                                    raise ValueError("once")
                                came += 1
                        except ValueError:
                            continue
                        if came == 300:
                            break
                waiting = asyncio.create_task(jobs.poll(timeout=None))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                assert (await jobs.poll(timeout=0.0)) == []
                assert jobs.metrics()["acked"] == 300
            with pytest.raises(er.ClosedError):
                await jobs.poll()

    run(main())


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_who_polls_fast_has_the_next_jobs_under_way_and_who_polls_slowly_has_not(
    client, topic, work, pause
):
    """So a fast worker waits for no request, and a slow one keeps no job from others."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % n for n in range(50_000)])

    def leased_after(polls: int) -> int:
        for _ in range(polls):
            jobs.ack_many(jobs.poll(100, timeout=WITHIN))
            time.sleep(pause)
        in_hand = jobs.poll(100, timeout=WITHIN)
        [part] = client.admin().describe_share_group(jobs.group).partitions
        jobs.ack_many(in_hand)
        return int(part.leased)

    with work() as jobs:
        if pause:
            assert leased_after(3) <= 100
        else:  # a busy machine makes it slow now and then
            wait_until(lambda: leased_after(12) > 100, WITHIN)


def test_a_worker_with_all_its_leases_says_why_it_gets_no_more(
    topic, work, node, monkeypatch, caplog
):
    monkeypatch.setattr(acquirer, "LEASES_MAX", 3)
    produce(node, topic, [b"x"] * 5)
    with work() as jobs:
        held = [jobs.poll(1, timeout=WITHIN) for _ in range(3)]
        assert [len(each) for each in held] == [1, 1, 1]
        assert [jobs.poll(timeout=0.05), jobs.poll(timeout=0.05)] == [[], []]
        assert "by as many leases as it may have" in repr(jobs)
        [told] = [it.getMessage() for it in caplog.records if "3 leases (LEASES_MAX)" in it.message]
        assert "gets no further jobs before it answers" in told
        held[0][0].ack()
        assert len(jobs.poll(1, timeout=WITHIN)) == 1
        assert jobs.poll(timeout=0.05) == []
        assert jobs.metrics()["held_up"] == 2


def test_who_asked_in_vain_asks_at_once_when_a_record_comes(topic, work, node, monkeypatch):
    """The pause is for those who were too late for a record that they saw."""
    monkeypatch.setattr(acquirer, "LOOK_EVERY", 3600.0)
    produce(node, topic, [b"x"])
    with work() as jobs:
        [job] = jobs.poll(1, timeout=WITHIN)
        monkeypatch.setattr(jobs._acquirer, "_pauses", Backoff(3600.0, 3600.0))
        job.ack()
        before = jobs.metrics()["empty"]
        wait_until(
            lambda: not jobs.poll(1, timeout=0.01) and jobs.metrics()["empty"] > before, WITHIN
        )
        produce(node, topic, [b"y"])
        assert [job.value for job in jobs.poll(1, timeout=WITHIN)] == [b"y"]


def test_two_leases_of_a_partition_are_read_one_after_the_other(client, topic, work):
    """Over tcp a partition has one cursor, and each lease needs it elsewhere. What does not come
    for seconds is given back, which nothing here is."""
    with client.producer(batch_bytes=16 << 10) as producer:
        for _ in range(300):
            producer.send(topic, os.urandom(4000))
    with work(prefetch_bytes=16 << 10) as jobs:
        got = offsets(jobs.poll(100, timeout=WITHIN))  # of which the first ones come
        while len(got) < 300:
            batch = jobs.poll(500, timeout=WITHIN)
            jobs.ack_many(batch)
            got += offsets(batch)
            assert jobs.metrics()["released"] == 0
        assert sorted(got) == list(range(300))


def test_what_comes_again_is_read_without_what_stands_behind_it(client, topic, work):
    with client.producer(linger=0) as producer:
        for number in range(400):
            producer.send_and_wait(topic, b"%d" % number)
    with work() as jobs:
        for job in all_of(jobs, 400):
            job.nack(delay=0) if job.offset == 100 else job.ack()
        jobs.flush()
        [again] = jobs.poll(timeout=WITHIN)
        assert (again.offset, again.deliveries) == (100, 2)
        decoded = jobs._reader.partitions[topic, 0].fetched
        assert 0 < decoded < 2000, "of some 80,000 bytes"


def test_what_is_not_due_waits_and_what_expired_is_never_a_job(client, topic, work):
    with client.producer() as producer, work() as jobs:
        begun = time.time()
        producer.send(topic, b"late", delay=0.5)
        producer.send(topic, b"now")
        producer.send(topic, b"gone", ttl=0.001)
        producer.send(topic, b"soon", delay=0.25)
        producer.send(topic, b"urgent", priority=9)
        producer.flush()
        wait_until(lambda: time.time() > begun + 0.01)
        got: list[bytes | None] = []
        while len(got) < 4:
            for job in jobs.poll(timeout=WITHIN):
                got.append(job.value)
                due = job.record.due
                assert due is None or time.time_ns() // 1000 >= due
                assert job.deliveries == 1
                job.ack()
        jobs.flush()
        assert got == [b"urgent", b"now", b"soon", b"late"]
        assert (jobs.metrics()["delayed"], jobs.metrics()["ttl_expired"]) == (2, 1)
        with client.admin() as admin:
            assert admin.describe_share_group(work.group).lag == 0


def test_a_waiting_record_outlives_its_worker_and_comes_when_it_is_due(client, topic, work):
    with client.producer() as producer:
        producer.send_and_wait(topic, b"late", delay=0.4)
    with work() as jobs:
        wait_until(lambda: jobs.poll() or jobs.metrics()["delayed"])
        jobs.flush()
    with work() as jobs:
        [job] = jobs.poll(timeout=WITHIN)
        assert time.time_ns() // 1000 >= job.record.due
        assert job.deliveries == 1
        job.ack()


def test_waits_go_by_the_coordinators_clock_which_a_test_may_move(client, node, topic, work):
    with client.producer() as producer:
        producer.send(topic, b"in an hour", delay=3600)
        producer.send(topic, b"for a minute", ttl=60.0, delay=30.0)
        producer.send(topic, b"now")
        producer.flush()
    with work(backoff=(600.0, 600.0)) as jobs:
        [job] = all_of(jobs, 1)
        job.nack(delay=600.0)
        jobs.flush()
        assert jobs.poll() == []
        node.advance(601.0)
        [job] = all_of(jobs, 1)
        assert (job.value, job.deliveries) == (b"now", 2)
        job.ack()
        jobs.flush()
        if node.transport == "shm":
            node.restart()  # it is as far ahead as it was
        node.advance(3000.0)
        [job] = all_of(jobs, 1)
        assert (job.value, job.deliveries) == (b"in an hour", 1)
        job.ack()
        jobs.flush()
        counts = jobs.metrics()
        assert (counts["delayed"], counts["ttl_expired"]) == (2, 1), "each waits once"
    for bad in (0.0, -1.0, float("nan"), 1e12):
        with pytest.raises(er.ConfigError, match="advance"):
            node.advance(bad)


def test_a_job_without_an_answer_goes_to_others_after_max_lease_unless_it_was_extended(
    node, client, topic, work
):
    produce(node, topic, numbers(2))
    with work(max_lease=60.0) as one, work(max_lease=60.0) as two:
        hung, busy = all_of(one, 2)
        assert busy.extend(3600.0)
        node.advance(61.0)
        [again] = two.poll(timeout=WITHIN)
        assert (again.offset, again.deliveries) == (0, 2)
        again.ack()
        two.flush()
        assert not hung.extend(3600.0), "others have it"
        hung.ack()  # too late
        assert busy.extend(1.0), "never shorter than it was"
        busy.ack()
        one.flush()
        assert one.metrics()["stale"] == 2
        with client.admin() as admin:
            described = admin.describe_share_group(work.group)
        assert (described.lag, described.max_lease) == (0, 60.0)
        assert described.counts["timed_out"] == 1


def test_what_stood_at_hand_for_too_long_is_given_back_and_not_handed_out(node, topic, work):
    produce(node, topic, numbers(1000))
    with work(max_lease=0.5) as jobs:
        for handed, job in enumerate(jobs):
            job.ack()
            if jobs.metrics()["overdue"]:
                break
            if handed > 100 and handed % 10 == 0:
                time.sleep(0.51)  # a job that takes long
            assert handed < 999


def test_a_thread_of_a_pool_asks_for_more_time_while_another_polls(node, topic, work):
    produce(node, topic, numbers(1))
    with work(max_lease=60.0) as jobs:
        [job] = all_of(jobs, 1)

        def answer():
            job.extend(3600.0)
            wait_until(lambda: not jobs._leases.is_unsent, WITHIN)
            node.advance(61.0)
            job.ack()

        thread = threading.Thread(target=answer)
        thread.start()
        while thread.is_alive():
            assert jobs.poll(timeout=0.05) == [], "nobody else got it"
        thread.join()
        jobs.flush()
        assert (jobs.metrics()["stale"], jobs.metrics()["extended"]) == (0, 1)


def test_in_an_event_loop_more_time_is_asked_for_by_a_task(node, topic, work):
    produce(node, topic, numbers(1))

    async def main():
        async with aio.connect(node.url) as client:
            options = {"group": work.group, "max_lease": 60.0}
            async with client.share_consumer(topic, **options) as jobs:
                async for job in jobs:
                    with job:
                        assert job.extend(3600.0)
                        while jobs._core._leases.is_unsent:
                            await asyncio.sleep(0.01)
                        await asyncio.to_thread(node.advance, 61.0)
                        assert job.extend(3600.0)
                    break
                await jobs.flush()  # also while that task is at it
                assert (jobs.metrics()["stale"], jobs.metrics()["extended"]) == (0, 2)
                assert await jobs.poll(timeout=0.0) == []

    run(main())


def test_a_breaker_pauses_a_group_whose_jobs_die_and_an_operator_resumes_it(
    node, client, topic, work
):
    produce(node, topic, numbers(40))
    options = {"max_deliveries": 1, "dead_share": 0.5, "dead_letters": None}
    with client.admin() as admin, work(**options) as jobs:
        held: list[Any] = []
        while len(held) < 30:
            held += jobs.poll(30 - len(held), timeout=1.0)
        for job in held:
            job.nack(reason="no database")
        jobs.flush()
        pause = admin.describe_share_group(work.group).pause
        assert pause.by == ""
        assert "30 of 30 records" in pause.reason
        assert f"share group {work.group} is paused: 30 of 30" in node.log_tail(400)
        assert jobs.poll() == []
        assert jobs.metrics()["paused"] > 0
        admin.resume_share_group(work.group)
        came = all_of(jobs, 10)
        assert offsets(came) == list(range(30, 40))
        admin.pause_share_group(work.group, reason="by hand")
        jobs.ack_many(came)
        jobs.flush()
        told = admin.describe_share_group(work.group)
        assert (told.lag, told.pause.reason) == (0, "by hand"), "answers are taken"
        assert told.pause.by
        with pytest.raises(er.GroupError, match="no share group 'nobody'"):
            admin.pause_share_group("nobody")
        with pytest.raises(er.ConfigError, match="REASON_MAX"):
            admin.pause_share_group(work.group, reason="x" * 1001)


def test_a_description_counts_what_no_worker_had_yet_wherever_it_is_asked(node, topic, work):
    produce(node, topic, numbers(2))
    with work() as jobs:
        all_of(jobs, 2)
        produce(node, topic, numbers(7))
        with node.connect() as other, other.admin() as admin:
            told = admin.describe_share_group(work.group)
            assert (told.lag, told.partitions[0].end) == (9, 9)
            produce(node, topic, numbers(1))
            assert admin.describe_share_group(work.group).lag == 10
