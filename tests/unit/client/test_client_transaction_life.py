"""The life of a transactional producer: which call fits when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.transactions.state_machine import TransactionLife, TransactionState
from penstock.core.errors import ProducerFencedError, TransactionError

CALLS = ("begin", "commit", "settled", "cannot_commit", "abort", "ended")
BY_COORDINATOR = {"settled", "cannot_commit", "ended"}


def test_a_transaction_from_begin_to_commit():
    life = TransactionLife("billing-0")
    with pytest.raises(TransactionError, match="no transaction is open"):
        life.check_may_send()
    life.begin()
    life.check_may_send()
    life.commit()
    with pytest.raises(TransactionError, match="being committed"):
        life.check_may_send()
    life.settled()
    life.ended()
    assert life.state is TransactionState.READY


def test_one_that_is_not_settled_may_still_be_aborted_and_one_that_was_asked_for_may_not():
    life = TransactionLife("t")
    life.begin()
    life.commit()
    assert life.abort()
    life.ended()
    assert not life.abort()  # nothing is open: nothing to do
    life.begin()
    life.commit()
    life.settled()
    with pytest.raises(TransactionError, match="commit_transaction"):
        life.abort()
    life.commit()  # the answer was lost: asked again
    assert life.state is TransactionState.COMMITTING


def test_a_fenced_one_can_do_nothing_any_more():
    life = TransactionLife("t")
    life.begin()
    life.fenced("somebody else")
    for call in (life.check_may_send, life.begin, life.commit, life.abort):
        with pytest.raises(ProducerFencedError, match="somebody else"):
            call()


@given(st.lists(st.sampled_from(CALLS), max_size=30))
def test_records_are_welcome_only_between_a_begin_and_what_ends_it(calls):
    life, is_open = TransactionLife("t"), False
    for call in calls:
        before = life.state
        try:
            getattr(life, call)()
        except TransactionError:
            assert life.state is before
            continue
        except AssertionError:
            assert call in BY_COORDINATOR  # an answer to what nobody asked
            assert life.state is before
            continue
        if call == "begin":
            assert not is_open
            is_open = True
        elif call in ("commit", "abort"):
            is_open = False
        try:
            life.check_may_send()
            assert is_open
        except TransactionError:
            assert not is_open
