"""What a worker of a share group answers: in runs, once, and not lost by what comes in between."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.consumer.records import Record
from penstock.client.share.jobs import Job
from penstock.client.share.leases import (
    ACCEPTED,
    EXPIRED,
    FAILED,
    LOST,
    REASON_BYTES_PER_REQUEST,
    REJECTED,
    RELEASED,
    RUNS_PER_REQUEST,
    OpenLeases,
    merged,
    runs_of,
)
from penstock.core.errors import ConfigError
from penstock.ipc import sharing as sh

TOPIC = bytes(16)


def leases_of(*runs, lease=7, deliveries=1):
    counts: dict[str, int] = {}
    leases = OpenLeases("g", counts, lambda: "m")
    delivered = [(deliveries, first, end) for first, end in runs]
    leases.add("jobs", sh.LeasedRecords(TOPIC, 0, lease, list(runs), delivered))
    return leases, next(iter(leases)), counts


def job_at(offset, held, leases):
    return Job(Record("jobs", 0, offset, 0, b"k", b"v"), 1, held, leases)


def taken_in(leases, stale=()):
    """What the coordinator got, once it has it."""
    sent = leases.outgoing()
    leases.confirm(sent, [list(stale)] * len(sent.answers))
    return sent.answers


def offsets(runs):
    return [offset for first, end in runs for offset in range(first, end)]


@given(st.lists(st.integers(0, 60), max_size=80))
def test_offsets_are_named_by_the_fewest_runs(given):
    found = runs_of(given)
    assert offsets(found) == sorted(set(given))
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(found))
    assert merged([(one, one + 1) for one in given]) == found


def test_acks_go_as_runs_and_what_is_not_answered_stays_held():
    leases, held, counts = leases_of((0, 5), (8, 10))
    for offset in (4, 0, 1, 9):
        leases.accept(held, offset)
    [answer] = taken_in(leases)
    assert answer.accepted == [(0, 2), (4, 5), (9, 10)]
    assert (answer.lease, answer.released, answer.failed, answer.rejected) == (7, [], [], [])
    assert held.left == ((2, 4), (8, 9))
    assert (leases.records, counts["acked"], counts["stale"]) == (3, 4, 0)
    assert taken_in(leases) == []


def test_each_kind_of_answer_goes_by_itself_with_its_reason_and_delay():
    leases, held, counts = leases_of((0, 9))
    leases.answer(held, RELEASED, 0, 1)
    leases.answer(held, FAILED, 1, 2, "no", None)
    leases.answer(held, FAILED, 2, 3, "no", None)
    leases.answer(held, FAILED, 3, 4, "no", 2.0)
    leases.answer(held, REJECTED, 4, 5, "never")
    leases.skip(held, [(6, 7)])
    leases.skip(held, [(7, 8)], EXPIRED)
    leases.skip(held, [(8, 9)], LOST)
    leases.accept(held, 5)
    [answer] = taken_in(leases)
    assert answer.accepted == [(5, 6)]
    assert (answer.skipped, answer.expired, answer.lost) == ([(6, 7)], [(7, 8)], [(8, 9)])
    assert answer.released == [(0, 1)]
    assert answer.failed == [
        sh.FailedRuns([(1, 3)], "no", None), sh.FailedRuns([(3, 4)], "no", 2.0)
    ]  # fmt: skip
    assert answer.rejected == [sh.FailedRuns([(4, 5)], "never")]
    assert len(leases) == 0
    assert [counts[kind] for kind in ("acked", "nacked", "released", "rejected")] == [1, 3, 1, 1]


def test_an_answer_is_sent_again_until_somebody_has_it():
    leases, held, _ = leases_of((0, 3))
    leases.accept(held, 0)
    lost = leases.outgoing()
    leases.accept(held, 1)
    again = leases.outgoing()
    assert [lost.answers[0].accepted, again.answers[0].accepted] == [[(0, 1)], [(0, 2)]]
    leases.confirm(again, [[]])
    leases.confirm(again, [[]])  # an interrupt may have it taken in twice
    assert (held.left, leases.is_unsent) == (((2, 3),), False)


def test_what_is_answered_while_a_request_is_under_way_goes_with_the_next_one():
    leases, held, _ = leases_of((0, 3))
    leases.accept(held, 0)
    sent = leases.outgoing()
    leases.accept(held, 1)
    leases.confirm(sent, [[]])
    assert leases.is_unsent
    assert taken_in(leases)[0].accepted == [(1, 2)]


def test_stale_answers_are_counted_and_forgotten_leases_take_none(caplog):
    leases, held, counts = leases_of((0, 4))
    leases.accept(held, 0)
    with caplog.at_level("INFO", "penstock.consumer"):
        taken_in(leases, stale=[(0, 1)])
        leases.forget()
        job_at(1, held, leases).ack()
        job_at(2, held, leases).nack()
    assert counts["stale"] == 3
    assert taken_in(leases) == []
    assert caplog.text.count("came to nothing") == 1, "told once"


def test_answers_that_nobody_took_in_are_stale_once_their_lease_is_forgotten():
    """So who has flushed knows which of them came to nothing."""
    leases, held, counts = leases_of((0, 9))
    job_at(0, held, leases).ack()
    taken_in(leases)
    leases.skip(held, [(1, 3)])
    for offset in (3, 4):
        job_at(offset, held, leases).ack()
    leases.outgoing()  # its answer is lost
    job_at(5, held, leases).nack()
    leases.forget()
    assert counts["stale"] == 3
    leases.forget()
    assert counts["stale"] == 3


def test_a_job_takes_its_first_answer():
    leases, held, _ = leases_of((0, 3))
    job = job_at(0, held, leases)
    job.ack()
    job.ack()
    job.nack(reason="late")
    job.release()
    job.reject()
    [answer] = taken_in(leases)
    assert (answer.accepted, answer.failed, answer.released) == ([(0, 1)], [], [])


def test_a_block_answers_by_how_it_is_left():
    leases, held, _ = leases_of((0, 9))
    with job_at(0, held, leases):
        pass
    with pytest.raises(ValueError, match="bad"), job_at(1, held, leases):
        raise ValueError("bad")
    with pytest.raises(KeyboardInterrupt), job_at(2, held, leases):
        raise KeyboardInterrupt
    with job_at(3, held, leases) as job:
        job.reject("worn out")
    [answer] = taken_in(leases)
    assert answer.accepted == [(0, 1)]
    assert answer.failed == [sh.FailedRuns([(1, 2)], "ValueError: bad")]
    assert answer.released == [(2, 3)]
    assert answer.rejected == [sh.FailedRuns([(3, 4)], "worn out")]


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_delay_that_nobody_can_wait_for_is_refused(delay):
    leases, held, _ = leases_of((0, 1))
    job = job_at(0, held, leases)
    with pytest.raises(ConfigError, match="delay"):
        job.nack(delay)
    assert not job.is_answered


def test_a_reason_is_cut_and_made_sendable():
    leases, held, _ = leases_of((0, 1))
    job_at(0, held, leases).nack(reason="\ud800" + "x" * 5000)
    [answer] = taken_in(leases)
    assert len(answer.failed[0].reason) == sh.REASON_MAX
    answer.failed[0].reason.encode()


def test_closing_gives_back_what_has_no_answer():
    leases, held, _ = leases_of((0, 6))
    leases.accept(held, 1)
    taken_in(leases)
    leases.accept(held, 2)
    leases.answer(held, FAILED, 4, 5, "no")
    leases.release_all()
    [answer] = taken_in(leases)
    assert (answer.accepted, answer.released) == ([(2, 3)], [(0, 1), (3, 4), (5, 6)])
    assert len(leases) == 0


def test_without_accepts_what_was_not_sent_is_given_back_too():
    leases, held, _ = leases_of((0, 3))
    leases.accept(held, 1)
    leases.release_all(accepts=False)
    [answer] = taken_in(leases)
    assert (answer.accepted, answer.released) == ([], [(0, 3)])


def test_a_request_takes_a_bounded_number_of_runs_and_the_next_one_the_rest():
    leases, held, _ = leases_of((0, 5000))
    for offset in range(0, 5000, 2):
        leases.accept(held, offset)
    sizes = []
    while leases.is_unsent:
        [answer] = taken_in(leases)
        sizes.append(len(answer.accepted))
    assert max(sizes) == RUNS_PER_REQUEST
    assert sum(sizes) == 2500


def test_a_request_takes_a_bounded_number_of_reasons():
    leases, held, _ = leases_of((0, 100))
    for offset in range(100):
        job_at(offset, held, leases).nack(reason=f"{offset} " + "x" * 900)
    came = []
    while leases.is_unsent:
        [answer] = taken_in(leases)
        assert sum(len(one.reason) for one in answer.failed) < REASON_BYTES_PER_REQUEST + 1000
        came += [one.runs for one in answer.failed]
    assert came == [[(offset, offset + 1)] for offset in range(100)]


def test_answers_of_many_threads_are_all_there_and_wake_who_sleeps():
    leases, held, _ = leases_of((0, 4000))
    rung = []
    leases.waking(lambda: rung.append(1))

    def work(first):
        for offset in range(first, 4000, 4):
            job_at(offset, held, leases).ack()

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    found = []
    while any(thread.is_alive() for thread in threads) or leases.is_unsent:
        for answer in taken_in(leases):
            found += offsets(answer.accepted)
    assert sorted(found) == list(range(4000))
    assert rung
    assert ACCEPTED == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["ack", "nack", "release", "lose", "send"]), st.integers(0, 19))
    )
)
def test_every_offset_gets_exactly_one_answer_whatever_is_lost(steps):
    leases, held, _ = leases_of((0, 20))
    jobs = [job_at(offset, held, leases) for offset in range(20)]
    said: dict[int, str] = {}
    got: dict[int, str] = {}

    def note(answers):
        for answer in answers:
            for kind, runs in (
                ("ack", answer.accepted), ("release", answer.released),
                ("nack", [run for one in answer.failed for run in one.runs]),
            ):  # fmt: skip
                for offset in offsets(runs):
                    assert got.setdefault(offset, kind) == kind

    for what, offset in steps:
        if what == "send":
            note(taken_in(leases))
        elif what == "lose":
            note(leases.outgoing().answers)
        else:
            getattr(jobs[offset], what)()
            said.setdefault(offset, what)
    note(taken_in(leases))
    assert got == said
    assert offsets(held.left) == [offset for offset in range(20) if offset not in said]


def test_more_time_is_asked_for_by_itself_and_answers_for_nothing():
    leases, held, counts = leases_of((0, 3))
    job, other = job_at(0, held, leases), job_at(1, held, leases)
    sent = []
    leases.extending = lambda: sent.append(taken_in(leases))
    assert job.extend(30.0)
    assert sent[0][0].extended == [sh.ExtendedRuns([(0, 1)], 30.0)]
    assert (held.left, counts["extended"], counts["acked"]) == (((0, 3),), 1, 0)
    leases.extending = None
    assert other.extend(5)
    assert held.unanswered == ((0, 3),), "closing gives it back all the same"
    other.ack()
    [answer] = taken_in(leases, stale=[(0, 1)])
    assert (answer.accepted, answer.extended) == ([(1, 2)], [sh.ExtendedRuns([(1, 2)], 5.0)])
    assert held.left == ((2, 3),), "what others have by now is no longer held"
    assert not job.extend(1.0)
    assert not other.extend(1.0), "it is answered for"
    leases.forget()
    assert not job_at(2, held, leases).extend(1.0)
    for bad in (0.0, -1, float("nan"), 4e7):
        with pytest.raises(ConfigError, match="seconds"):
            job.extend(bad)
