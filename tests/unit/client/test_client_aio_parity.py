"""`penstock.aio` has the verbs of the blocking client, with the same arguments: what one of the two
gets and the other does not is noticed here.

A method that returns `Waits` is no verb: it is one with the waiting left to another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock import aio
from penstock.client.admin.admin import Admin
from penstock.client.client import Client
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.group.consumer import GroupConsumer
from penstock.client.deadletters.queue import DeadLetterQueue
from penstock.client.producer.producer import Producer
from penstock.client.share.consumer import ShareConsumer
from penstock.client.transactions.producer import TransactionalProducer
from penstock.client.transactions.stages import Stage

PAIRS: dict[type, type] = {
    Admin: aio.Admin,
    Client: aio.Client,
    Consumer: aio.Consumer,
    DeadLetterQueue: aio.DeadLetterQueue,
    GroupConsumer: aio.GroupConsumer,
    Producer: aio.Producer,
    ShareConsumer: aio.ShareConsumer,
    TransactionalProducer: aio.TransactionalProducer,
    Stage: aio.Stage,
}

SENDING = {
    "hurry": "for `send_and_wait`",
    "leave": "for `close`",
}
TRANSACTING = SENDING | {"check_may_send": "for what sends"}

NOT_IN_A_LOOP: dict[type, dict[str, str]] = {
    Admin: {
        "after_fork_in_child": "asked by penstock.client.fork_safety, of the admin within",
    },
    Client: {},
    Consumer: {
        "after_fork_in_child": "asked by penstock.client.fork_safety, of the consumer within",
        "awaits": "for `polling`",
        "brought": "for who carries `polling` out",
        "go_back": "for `polling`",
        "known_beginnings": "`beginning_offsets` there",
        "known_ends": "`end_offsets` there",
        "known_lag": "`lag` there",
        "is_over": "for the loops over it",
        "moved": "for its reader",
    },
    GroupConsumer: {
        "after_fork_in_child": "asked by penstock.client.fork_safety, of the consumer within",
        "brought": "for who carries `polling` out",
        "follows": "for the loops over it",
        "is_at_end": "for the loops over it",
        "is_disturbed": "for the loops over it",
        "loop_size": "for the loops over it",
        "reads": "for who carries `run` out",
        "running": "for who carries `run` out",
        "runs": "for the loops over it",
        "went_on": "for the loops over it",
        "known_lag": "`lag` there",
        "unpack": "the group may have to be asked between two records: loop over the consumer",
        "offsets_of": "for transactions",
    },
    ShareConsumer: {
        "after_fork_in_child": "asked by penstock.client.fork_safety, of the consumer within",
        "brought": "for who carries `polling` out",
        "handing_out": "for the loops over it",
        "has_more": "for event loops of others, as that of kombu",
        "has_unsent": "for event loops of others, as that of kombu",
        "is_behind": "for event loops of others, as that of kombu",
        "on_extension": "by which the loop sends what asks for more time",
    },
    DeadLetterQueue: {"replaying": "for who carries `replay` out"},
    Producer: SENDING,
    TransactionalProducer: TRANSACTING
    | {
        "settling": "a part of `commit_transaction`",
        "call_when_settled": "a part of `commit_transaction`",
        "decide": "a part of `commit_transaction`",
    },
    Stage: TRANSACTING,
}

DRAIN = {"drain": "`send` never waits for room there"}
ONLY_IN_A_LOOP: dict[type, dict[str, str]] = {
    Admin: {},
    Client: {},
    Consumer: {},
    DeadLetterQueue: {},
    GroupConsumer: {"blocking": "for a transaction, which commits for it"},
    ShareConsumer: {},
    Producer: DRAIN,
    TransactionalProducer: DRAIN | {"transactional_id": "an attribute there"},
    Stage: DRAIN | {"transactional_id": "an attribute there", "epoch": "an attribute there"},
}

LOOP_OPENS = ("make", "make_transactional", "make_stage")
"""By which a loop makes what a constructor makes elsewhere."""


def verbs(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in LOOP_OPENS and not is_steps(getattr(kind, name))
    }


def is_steps(member: object) -> bool:
    return str(getattr(member, "__annotations__", {}).get("return", "")).startswith("Waits[")


def arguments(verb: Callable[..., object]) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults."""
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(inspect.unwrap(verb)).parameters.values()
    ]


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda kind: kind.__name__)
def test_a_loop_has_the_verbs_of_the_blocking_client(blocking: type):
    here, there = verbs(PAIRS[blocking]), verbs(blocking)
    missing, more = there.keys() - here.keys(), here.keys() - there.keys()
    assert missing == NOT_IN_A_LOOP[blocking].keys(), "give the loop the verb, or say why not"
    assert more == ONLY_IN_A_LOOP[blocking].keys(), "give the blocking client the verb as well"


@pytest.mark.parametrize("blocking", PAIRS, ids=lambda kind: kind.__name__)
def test_verbs_take_the_same_arguments_in_a_loop(blocking: type):
    here, there = verbs(PAIRS[blocking]), verbs(blocking)
    for name in here.keys() & there.keys():
        if isinstance(there[name], property):
            assert isinstance(here[name], property), name
        else:
            assert arguments(here[name]) == arguments(there[name]), name
