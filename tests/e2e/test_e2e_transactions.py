"""Transactions over a real node: what commits, what never shows, who is fenced (rule 19)."""

# ruff: noqa: PT012 - what stands in a transaction is what fails it

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from node_helpers import environment, eventually

import penstock
from penstock.client.session import place_of
from penstock.client.transactions.coordinator_link import CoordinatorLink
from penstock.ipc import coordination as co
from penstock.testing import Broker

pytestmark = pytest.mark.over_tcp

PROGRAMS = Path(__file__).resolve().parents[1] / "transaction_programs.py"


@pytest.fixture
def client(node):
    with node.connect() as made:
        yield made


@pytest.fixture
def topic(node, request):
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    node.create_topic(name, partitions=3)
    return name


def seen(client, *topics, isolation="read_committed"):
    """Values that a reader finds, in the order of their partitions and offsets."""
    with client.consumer(*topics, isolation=isolation, follow=False) as consumer:
        found = sorted((r.topic, r.partition, r.offset, r.value) for r in consumer)
    return [value for *_, value in found]


def marked(client):
    """Wait until every decision has reached its partitions."""
    admin = client.admin()
    eventually(
        lambda: all(each.state == "ready" for each in admin.list_transactions()) or None, "markers"
    )


def committed(client, *topics):
    marked(client)
    return sorted(seen(client, *topics))


# --- commit and abort ----------------------------------------------------------------------------
def test_a_transaction_is_seen_once_it_is_committed_and_not_before(client, node, topic):
    node.create_topic(f"{topic}-b")
    with client.producer(transactional_id=topic, linger=0.0) as producer:
        producer.begin_transaction()
        receipts = [producer.send(topic, b"%d" % n, partition=n % 3).result() for n in range(6)]
        producer.send_batch(f"{topic}-b", [b"6", b"7"]).result()
        assert {receipt.durability for receipt in receipts} == {"fsynced"}
        assert seen(client, topic, f"{topic}-b") == []
        assert len(seen(client, topic, f"{topic}-b", isolation="read_uncommitted")) == 8
        producer.commit_transaction()
        assert committed(client, topic, f"{topic}-b") == [b"%d" % n for n in range(8)]
        assert producer.metrics()["transactions_committed"] == 1


def test_an_aborted_transaction_is_never_seen_and_the_next_one_is(client, topic):
    with client.producer(transactional_id=topic) as producer:
        for number in range(6):
            producer.begin_transaction()
            deliveries = [producer.send(topic, b"%d" % number, partition=p) for p in range(3)]
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                assert all(delivery.done() for delivery in deliveries)
    assert committed(client, topic) == sorted([b"0", b"2", b"4"] * 3)


def test_leaving_the_block_by_an_exception_aborts(client, topic):
    with client.producer(transactional_id=topic) as producer:
        with pytest.raises(KeyError), producer.transaction():
            flown = producer.send(topic, b"flown")
            flown.result()
            waits = producer.send(topic, b"waits")
            raise KeyError
        with pytest.raises(penstock.TransactionError, match="aborted"):
            waits.result()
        assert flown.result().topic == topic  # it is in the log, and nobody will see it
        with producer.transaction():
            producer.send(topic, b"good")
        with producer.transaction():
            pass  # an empty one costs nothing
    assert committed(client, topic) == [b"good"]


def test_a_record_that_cannot_be_delivered_aborts_the_transaction(client, node, topic):
    node.create_topic(f"{topic}-gone")
    with client.producer(transactional_id=topic) as producer:
        with pytest.raises(penstock.TransactionError, match="gone"), producer.transaction():
            producer.send(topic, b"lost with it")
            producer.send(f"{topic}-gone", b"x").result()
            client.admin().delete_topic(f"{topic}-gone")
            delivery = producer.send(f"{topic}-gone", b"y")
            delivery.exception()  # somebody has looked at it: it counts all the same
        with producer.transaction():
            producer.send(topic, b"good")
    assert committed(client, topic) == [b"good"]


def test_records_of_other_producers_stand_among_those_of_a_transaction(client, topic):
    with client.producer(transactional_id=topic) as producer, client.producer() as plain:
        with producer.transaction():
            producer.send(topic, b"t1", partition=0)
            producer.flush()
            plain.send_and_wait(topic, b"p1", partition=0)
            producer.send(topic, b"t2", partition=0)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"t3", partition=0)
            producer.flush()
            plain.send_and_wait(topic, b"p2", partition=0)
            raise ZeroDivisionError
    marked(client)
    assert seen(client, topic) == [b"t1", b"p1", b"t2", b"p2"]


# --- calls that do not fit -----------------------------------------------------------------------
def test_calls_that_do_not_fit_say_what_to_do(client, topic):
    with client.producer(transactional_id=topic) as producer:
        for call in (
            lambda: producer.send(topic, b"x"),
            lambda: producer.send_batch(topic, [b"x"]),
        ):
            with pytest.raises(penstock.TransactionError, match="begin_transaction"):
                call()
        with pytest.raises(penstock.TransactionError, match="begin one"):
            producer.commit_transaction()
        producer.abort_transaction()  # nothing to abort is no error
        producer.begin_transaction()
        with pytest.raises(penstock.TransactionError, match="commit or abort it first"):
            producer.begin_transaction()
        producer.send(topic, b"left open")
    assert committed(client, topic) == []  # leaving the producer aborted it


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 0}, {"idempotent": False}, {"on_full": "drop_oldest"}, {"durability": "fsynced"},
        {"transaction_timeout": 0.0}, {"transaction_timeout": 1e6},
        {"transaction_durability": "ring"}, {"transactional_id": ""},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_make_no_transactions_are_refused(client, options):
    with pytest.raises(penstock.ConfigError):
        client.producer(**{"transactional_id": "t", **options})


def test_a_consumed_batch_must_be_one_of_a_group(client, topic):
    with client.producer() as plain:
        plain.send_and_wait(topic, b"x")
    with client.consumer(topic) as consumer, client.producer(transactional_id=topic) as producer:
        batch = consumer.poll(timeout=25)
        with (
            pytest.raises(penstock.ConfigError, match="group"),
            producer.transaction(consumed=batch),
        ):
            producer.send(topic, b"never")
    assert committed(client, topic) == [b"x"]


# --- fencing -------------------------------------------------------------------------------------
def test_a_second_producer_with_the_id_fences_the_first_and_aborts_what_it_left(client, topic):
    first = client.producer(transactional_id=topic)
    first.begin_transaction()
    first.send(topic, b"zombie").result()
    second = client.producer(transactional_id=topic)
    assert second.producer_id == first.producer_id
    assert second.epoch > first.epoch
    with second.transaction():
        second.send(topic, b"good")
    late = first.send(topic, b"late")
    with pytest.raises(penstock.ProducerFencedError):
        first.commit_transaction()
    assert isinstance(late.exception(), penstock.TransactionError)
    for call in (first.begin_transaction, first.commit_transaction, lambda: first.send(topic, b"")):
        with pytest.raises(penstock.ProducerFencedError, match="end this one"):
            call()
    first.close()
    second.close()
    assert committed(client, topic) == [b"good"]


def test_a_late_end_never_touches_a_later_transaction(client, node, topic):
    with client.producer(transactional_id=topic) as producer:
        epochs = []
        for number in range(3):
            with producer.transaction():
                epochs.append(producer.epoch)
                producer.send(topic, b"%d" % number)
        producer.begin_transaction()
        producer.send(topic, b"open").result()
        link = CoordinatorLink(place_of(node.url), "late")
        try:

            def end(epoch, commit):
                return link.ask(
                    co.EndTransaction(topic, producer.producer_id, epoch, commit),
                    co.TransactionEnded,
                    5.0,
                )

            assert end(epochs[-1], False).committed  # the first outcome is answered again
            for old in epochs[:-1]:
                with pytest.raises(penstock.TransactionError):
                    end(old, True)
        finally:
            link.close()
        assert b"open" not in seen(client, topic)
        producer.send(topic, b"more").result()  # it is still open
        producer.abort_transaction()
    assert committed(client, topic) == [b"0", b"1", b"2"]


@pytest.mark.setting("transaction.transaction_timeout")
def test_a_transaction_that_takes_too_long_is_aborted(client, topic):
    with client.producer(transactional_id=topic, transaction_timeout=2.0) as producer:
        producer.begin_transaction()
        producer.send(topic, b"slow").result()
        admin = client.admin()
        eventually(
            lambda: (
                [t.state for t in admin.list_transactions() if t.transactional_id == topic]
                == ["ready"]
            ),
            "the timeout",
        )
        with pytest.raises(penstock.TransactionError, match="too long"):
            producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"good")
    assert committed(client, topic) == [b"good"]


def test_a_stopped_producer_is_fenced_when_it_goes_on(client, node, topic):
    """SIGSTOP with records in an open transaction, a successor that commits, SIGCONT."""
    with subprocess.Popen(
        [sys.executable, PROGRAMS, "zombie", node.url, topic],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    ) as zombie:  # fmt: skip
        assert zombie.stdin is not None
        assert zombie.stdout is not None
        try:
            assert zombie.stdout.readline() == "sent\n"
            zombie.send_signal(signal.SIGSTOP)
            with client.producer(transactional_id=topic) as successor, successor.transaction():
                successor.send(topic, b"good")
            zombie.send_signal(signal.SIGCONT)
            zombie.stdin.write("go on\n")
            zombie.stdin.flush()
            assert zombie.stdout.readline() == "ProducerFencedError\n"
        finally:
            zombie.kill()
    assert committed(client, topic) == [b"good"]


def test_a_fork_leaves_the_transaction_to_the_parent(client, topic):
    """Rule 7."""
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"parent")
        read, write = os.pipe()
        child = os.fork()
        if not child:
            said = []
            for call in (
                lambda: producer.send(topic, b"child"), producer.commit_transaction,
                producer.abort_transaction, producer.begin_transaction,
            ):  # fmt: skip
                try:
                    call()
                    said.append("nothing")
                except BaseException as error:
                    said.append(type(error).__name__)
            producer.close()
            os.write(write, " ".join(said).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 1000).decode().split() == ["ForkedClientError"] * 4
        os.close(read)
        os.close(write)
        producer.send(topic, b"parent")
        producer.commit_transaction()
    assert committed(client, topic) == [b"parent", b"parent"]


def test_columns_and_many_keys_go_in_transactions_as_well(client, topic):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(
        {"value": [b"%d" % n for n in range(500)], "key": [b"k%d" % n for n in range(500)]}
    )
    with client.producer(transactional_id=topic, compression="lz4", batch_bytes=2048) as producer:
        for commit in (True, False, True):
            producer.begin_transaction()
            producer.send_arrow(topic, table, key_column="key")
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert committed(client, topic) == sorted([b"%d" % n for n in range(500)] * 2)


# --- answers that are lost -----------------------------------------------------------------------
@pytest.mark.over_tcp(False)
def test_a_commit_without_an_answer_is_asked_for_again():
    """The node dies before it hears of the commit, and is away for longer than anybody waits."""
    with Broker() as broker:
        broker.create_topic("out")
        with (
            broker.connect() as client,
            client.producer(transactional_id="t", delivery_timeout=2.0) as producer,
        ):
            producer.begin_transaction()
            producer.send("out", b"once").result()
            broker.kill()
            for _ in range(2):
                with pytest.raises((penstock.PenstockTimeout, penstock.NotConnectedError)) as lost:
                    producer.commit_transaction()
                assert "outcome is not known" in str(lost.value)
            for call in (producer.begin_transaction, producer.abort_transaction):
                with pytest.raises(penstock.TransactionError, match="commit_transaction"):
                    call()
            broker.start()
            eventually(lambda: committing(producer), "the node")
            assert producer.metrics()["requests_repeated"] > 0
            with producer.transaction():
                producer.send("out", b"twice")
        with broker.connect() as client:
            assert committed(client, "out") == [b"once", b"twice"]


def committing(producer):
    try:
        producer.commit_transaction()
    except (penstock.PenstockTimeout, penstock.NotConnectedError):
        return False
    return True


@pytest.mark.over_tcp(False)
def test_an_abort_without_an_answer_is_asked_for_by_the_next_begin():
    with Broker() as broker:
        broker.create_topic("out")
        with (
            broker.connect() as client,
            client.producer(transactional_id="t", delivery_timeout=2.0) as producer,
        ):
            with pytest.raises(KeyError), producer.transaction():
                producer.send("out", b"never").result()
                broker.kill()
                raise KeyError
            with pytest.raises((penstock.PenstockTimeout, penstock.NotConnectedError)):
                producer.begin_transaction()
            broker.start()

            def begun():
                try:
                    producer.begin_transaction()
                except (penstock.PenstockTimeout, penstock.NotConnectedError):
                    return False
                return True

            eventually(begun, "the node")
            producer.send("out", b"good")
            producer.flush()
            producer.commit_transaction()
        with broker.connect() as client:
            assert committed(client, "out") == [b"good"]


def exactly_once(group):
    return {"group": group, "guarantee": "exactly-once", "start": "earliest"}


@pytest.mark.over_tcp(False)
@pytest.mark.parametrize("what", ["batch", "consumer"])
def test_after_an_abort_without_an_answer_its_input_comes_again_before_any_other(what):
    with Broker() as broker:
        for name in ("in", "out"):
            broker.create_topic(name)
        with (
            broker.connect() as client,
            client.producer(transactional_id="t", delivery_timeout=2.0) as producer,
            client.consumer("in", **exactly_once("g"), timeout=1.0) as consumer,
        ):
            with client.producer() as plain:
                plain.send_batch("in", [b"%d" % n for n in range(6)]).result()
            batch = consumer.poll(2, timeout=25)
            consumed = {"batch": batch, "consumer": consumer}[what]
            with pytest.raises(KeyError), producer.transaction(consumed=consumed):
                producer.send("out", b"never").result()
                broker.kill()
                raise KeyError
            broker.start()
            done: list[bytes] = []

            def job():
                try:
                    batch = consumer.poll(2, timeout=0.2)
                    with producer.transaction(consumed=batch if what == "batch" else consumer):
                        for record in batch:
                            producer.send("out", record.value)
                    done.extend(record.value for record in batch)
                except penstock.PenstockError:
                    pass  # as a job that goes on does
                return len(done) >= 6

            eventually(job, "all of it")
            assert done == [b"%d" % n for n in range(6)]
        with broker.connect() as client:
            assert committed(client, "out") == done


@pytest.mark.over_tcp(False)
def test_a_rewind_that_has_no_answer_is_made_by_the_next_poll_also_of_a_member_put_out_since():
    with Broker() as broker:
        broker.create_topic("in")
        options = {**exactly_once("g"), "timeout": 1.0, "session_timeout": 0.5}
        with broker.connect() as client, client.consumer("in", **options) as consumer:
            with client.producer() as plain:
                plain.send_batch("in", [b"%d" % n for n in range(6)]).result()
            assert len(consumer.poll(2, timeout=25)) == 2
            broker.kill()
            consumer.rewind()
            with pytest.raises(penstock.GroupError, match="not known"):
                consumer.offsets_of()
            broker.start()
            with broker.connect() as other:
                admin = other.admin()
                eventually(lambda: not admin.describe_group("g").members, "the end of its session")

            def polled():
                try:
                    return consumer.poll(2, timeout=0.2).offsets.tolist()
                except penstock.PenstockError:
                    return None  # no node yet

            assert eventually(polled, "a poll") == [0, 1]


# --- stages --------------------------------------------------------------------------------------
def test_stages_count_when_they_are_listed(client, topic):
    """Rule 20."""
    names = []
    for number in range(4):
        with client.stage(topic, 1) as stage:
            stage.send_batch(topic, [b"%d" % number] * 3)
            with pytest.raises(penstock.TransactionError, match="close it first"):
                _ = stage.name
        names.append(stage.name)
    assert seen(client, topic) == []
    assert client.commit_transaction(topic, 1, names[:2]) == penstock.StagesOutcome(True, 1)
    assert committed(client, topic) == sorted([b"0", b"1"] * 3)
    # A repetition answers what was decided first, whatever it lists.
    assert client.commit_transaction(topic, 1, names).committed
    assert client.commit_transaction(topic, 1, [], commit=False).committed
    assert committed(client, topic) == sorted([b"0", b"1"] * 3)
    with pytest.raises(penstock.StageDecidedError):
        client.stage(topic, 1)
    with client.stage(topic, 2) as stage:
        stage.send(topic, b"next")
    assert client.commit_transaction(topic, 2, [stage.name]).decided == 2
    assert committed(client, topic) == sorted([b"0", b"1"] * 3 + [b"next"])


def test_a_stage_that_was_given_up_has_no_name_and_cannot_be_committed(client, topic):
    with pytest.raises(KeyError), client.stage(topic, 1) as stage:
        stage.send(topic, b"never").result()
        raise KeyError
    with pytest.raises(penstock.TransactionError, match="given up"):
        _ = stage.name
    with client.stage(topic, 1) as good:
        good.send(topic, b"good")
    with pytest.raises(penstock.TransactionError, match="Nothing was decided"):
        client.commit_transaction(topic, 1, [good.name, "no-such-stage"])
    assert client.commit_transaction(topic, 1, [good.name]).committed
    assert committed(client, topic) == [b"good"]


@pytest.mark.setting("stage.attempt")
def test_stages_end_by_name_or_by_a_later_attempt_and_an_id_has_a_last_epoch(client, topic):
    def written(attempt, value):
        with client.stage(topic, 1, attempt=attempt) as stage:
            stage.send(topic, value)
        return stage.name

    left, named = written("1", b"left by a driver that died"), written("", b"named")
    client.end_stages(topic, [named, "no-such-stage"])
    good = written("2", b"good")
    for gone in (left, named):
        with pytest.raises(penstock.TransactionError, match="Nothing was decided"):
            client.commit_transaction(topic, 1, [good, gone])
    outcome = client.commit_transaction(topic, 1, [good], is_last=True)
    client.end_stages(topic, [good])
    assert client.commit_transaction(topic, 1, [good]) == outcome
    assert committed(client, topic) == [b"good"]
    with pytest.raises(TypeError, match="list of names"):
        client.end_stages(topic, good)


# --- consumed and produced -----------------------------------------------------------------------
def test_consumed_offsets_commit_with_the_records_or_not_at_all(client, node, topic):
    node.create_topic(f"{topic}-out")
    with client.producer() as plain:
        plain.send_batch(topic, [b"%d" % n for n in range(9)], partition=0).result()
    options = {"group": topic, "guarantee": "exactly-once", "start": "earliest"}
    with (
        client.producer(transactional_id=topic) as producer,
        client.consumer(topic, **options) as consumer,
    ):
        batch = consumer.poll(3, timeout=25)
        with pytest.raises(KeyError), producer.transaction(consumed=batch):
            producer.send(f"{topic}-out", b"aborted")
            raise KeyError
        again = consumer.poll(3, timeout=25)  # an abort rewinds
        assert [record.value for record in again] == [record.value for record in batch]
        with producer.transaction(consumed=again):
            for record in again:
                producer.send(f"{topic}-out", record.value)
    with client.consumer(topic, **options) as consumer:
        rest = consumer.poll(100, timeout=25)
        assert [record.value for record in rest] == [b"%d" % n for n in range(3, 9)]
    assert committed(client, f"{topic}-out") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("order", ["as they came", "the other way round", "with the consumer"])
def test_several_batches_count_together_or_all_come_again(client, node, topic, order):
    """In whatever order they are named: after an abort the first of them comes first, and a commit
    stands behind the last."""
    node.create_topic(f"{topic}-out")
    with client.producer() as plain:
        plain.send_batch(topic, [b"%d" % n for n in range(9)], partition=0).result()
    options = {"group": topic, "guarantee": "exactly-once", "start": "earliest"}
    with (
        client.producer(transactional_id=topic) as producer,
        client.consumer(topic, **options) as consumer,
    ):
        for fails in (True, False):
            batches = [consumer.poll(3, timeout=25), consumer.poll(3, timeout=25)]
            assert [record.offset for batch in batches for record in batch] == list(range(6))
            consumed = {
                "as they came": batches,
                "the other way round": batches[::-1],
                "with the consumer": [consumer, batches[1], batches[0]],
            }[order]
            try:
                with producer.transaction(consumed=consumed):
                    for batch in batches:
                        producer.send_batch(f"{topic}-out", batch.values)
                    if fails:
                        raise KeyError
            except KeyError:
                assert fails
    with client.consumer(topic, **options) as consumer:
        assert [record.offset for record in consumer.poll(100, timeout=25)] == [6, 7, 8]
    assert committed(client, f"{topic}-out") == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("aborts", ["batch", "consumer"])
def test_a_batch_that_comes_again_since_one_before_it_was_aborted_cannot_be_committed(
    client, node, topic, aborts
):
    node.create_topic(f"{topic}-out")
    with client.producer() as plain:
        plain.send_batch(topic, [b"%d" % n for n in range(6)], partition=0).result()
    options = {"group": topic, "guarantee": "exactly-once", "start": "earliest"}
    with (
        client.producer(transactional_id=topic) as producer,
        client.consumer(topic, **options) as consumer,
    ):
        first, second = consumer.poll(2, timeout=25), consumer.poll(2, timeout=25)
        consumed = {"batch": first, "consumer": consumer}[aborts]
        with pytest.raises(KeyError), producer.transaction(consumed=consumed):
            raise KeyError
        with pytest.raises(penstock.StaleGenerationError), producer.transaction(consumed=second):
            producer.send_batch(f"{topic}-out", second.values)
        for _ in range(3):
            with producer.transaction(consumed=(batch := consumer.poll(2, timeout=25))):
                producer.send_batch(f"{topic}-out", batch.values)
    assert committed(client, f"{topic}-out") == [b"%d" % n for n in range(6)]


def test_offsets_of_a_partition_that_moved_on_abort_the_transaction(client, topic):
    with client.producer() as plain:
        plain.send_batch(topic, [b"x"] * 3, partition=0).result()
    options = {"group": topic, "guarantee": "exactly-once", "start": "earliest"}
    with client.producer(transactional_id=topic) as producer:
        with client.consumer(topic, **options) as consumer:
            batch = consumer.poll(3, timeout=25)
        with pytest.raises(penstock.StaleGenerationError), producer.transaction(consumed=batch):
            producer.send(topic, b"never", partition=1)
        with pytest.raises(penstock.StaleGenerationError), producer.transaction(consumed=batch):
            pass  # offsets alone are a transaction, too
        with producer.transaction():
            producer.send(topic, b"good", partition=1)
    assert committed(client, topic) == sorted([b"x"] * 3 + [b"good"])


@pytest.mark.parametrize("how", ["polls", "loop"])
def test_what_was_handed_out_of_a_partition_that_went_aborts_a_transaction(client, topic, how):
    """With `consumed=consumer`: its next owner brings it again, so it must not count here."""
    with client.producer() as plain:
        for partition in range(3):
            plain.send_batch(topic, [b"%d" % partition] * 9, partition=partition).result()
    options = {"group": topic, "guarantee": "exactly-once", "start": "earliest"}
    with (
        client.producer(transactional_id=topic) as producer,
        client.consumer(topic, **options) as consumer,
    ):
        for _ in range(2):  # what was committed before does not matter
            with producer.transaction(consumed=consumer):
                assert consumer.poll(3, timeout=25)
        with pytest.raises(penstock.StaleGenerationError):  # noqa: SIM117
            with producer.transaction(consumed=consumer):
                rows = iter(consumer)
                for _ in range(20 if how == "loop" else 4):  # of each partition something
                    assert next(rows) if how == "loop" else consumer.poll(4, timeout=25)
                with client.consumer(topic, **options) as other:
                    eventually(
                        lambda: (consumer.poll(1), other.poll(1), other.assignment())[2],
                        "the other one's partition",
                    )
        with producer.transaction(consumed=consumer):
            assert consumer.poll(1, timeout=25)


def test_what_no_transaction_can_commit_is_refused_before_it_begins(client, node, topic, caplog):
    with client.producer() as plain:
        plain.send_and_wait(topic, b"1", partition=0)
    with (
        client.producer(transactional_id=f"{topic}-wrong") as producer,
        client.consumer(topic) as reader,
        client.consumer(topic, group=f"{topic}-once", guarantee="at-most-once") as member,
    ):
        for consumed, says in (
            (5, "consumed=5"),
            (reader.poll(timeout=25), "what a consumer of a group brought"),
            (member, "at-most-once"),
            (member.poll(timeout=25), "at-most-once"),
        ):
            with (
                pytest.raises(penstock.ConfigError, match=says),
                producer.transaction(consumed=consumed),
            ):
                pytest.fail("it began")
            producer.begin_transaction()
            with pytest.raises(penstock.ConfigError, match=says):
                producer.commit_transaction(consumed=consumed)
            producer.abort_transaction()
    assert "no answer" not in caplog.text
