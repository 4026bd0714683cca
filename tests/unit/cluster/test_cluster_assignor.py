"""Assignment by itself: balanced within one, everything given, and no move that need not be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.groups.assignor import Shares, assign

NO_LIMIT = 10_000


def topic(number: int) -> bytes:
    return bytes([number]) * 16


def loads(targets: dict[bytes, list[int]]) -> Counter[int]:
    found = Counter(number for numbers in targets.values() for number in numbers)
    del found[0]
    return found


@st.composite
def one_class(draw):
    """Topics that all members subscribe to, owned by some of them and by some that are gone."""
    members = tuple(sorted(draw(st.sets(st.integers(1, 9), min_size=1))))
    numbers = st.integers(0, 9)
    return {
        topic(n): Shares(
            members,
            draw(st.lists(numbers, min_size=size, max_size=size)),
            draw(st.lists(numbers, min_size=size, max_size=size)),
        )
        for n, size in enumerate(draw(st.lists(st.integers(1, 8), min_size=1, max_size=4)))
    }


@st.composite
def many_classes(draw):
    found = draw(one_class())
    return {
        topic_id: shares._replace(
            subscribers=tuple(sorted(draw(st.sets(st.integers(1, 6), min_size=1))))
        )
        for topic_id, shares in found.items()
    }


def least_moves(owned: Counter[int], members: tuple[int, ...], partitions: int) -> int:
    """Partitions that their owners cannot keep in any balanced assignment."""
    least, more = divmod(partitions, len(members))
    ranked = sorted((owned[number] for number in members), reverse=True)
    quotas = [least + (place < more) for place in range(len(members))]
    return sum(max(0, has - quota) for has, quota in zip(ranked, quotas, strict=True))


@given(one_class())
@settings(max_examples=300)
def test_equal_subscriptions_are_balanced_within_one_and_no_owner_loses_what_it_could_keep(topics):
    targets = assign(topics, NO_LIMIT)
    members = next(iter(topics.values())).subscribers
    given_to = loads(targets)
    counts = [given_to[number] for number in members]
    assert sum(counts) == sum(len(shares.owners) for shares in topics.values())
    assert max(counts) - min(counts) <= 1
    owned = Counter(n for shares in topics.values() for n in shares.owners if n in members)
    moved = sum(
        owner in members and owner != target
        for topic_id, shares in topics.items()
        for owner, target in zip(shares.owners, targets[topic_id], strict=True)
    )
    assert moved == least_moves(owned, members, sum(counts))


@given(many_classes())
@settings(max_examples=300)
def test_everything_goes_to_a_subscriber_and_no_single_move_would_balance_better(topics):
    targets = assign(topics, NO_LIMIT)
    given_to = loads(targets)
    for topic_id, shares in topics.items():
        assert set(targets[topic_id]) <= set(shares.subscribers)
        for number in targets[topic_id]:
            assert all(given_to[number] <= given_to[other] + 1 for other in shares.subscribers)


@given(many_classes())
def test_what_is_assigned_stays_assigned(topics):
    """Asked again once everything has moved, nothing changes."""
    targets = assign(topics, NO_LIMIT)
    moved = {
        i: shares._replace(owners=targets[i], targets=targets[i]) for i, shares in topics.items()
    }
    assert assign(moved, NO_LIMIT) == targets


@given(one_class())
def test_asked_again_before_anything_has_moved_the_same_partitions_are_asked_back(topics):
    def asked_back(targets):
        return {
            (topic_id, partition)
            for topic_id, shares in topics.items()
            for partition, owner in enumerate(shares.owners)
            if owner in shares.subscribers and owner != targets[topic_id][partition]
        }

    targets = assign(topics, NO_LIMIT)
    planned = {i: shares._replace(targets=targets[i]) for i, shares in topics.items()}
    assert asked_back(assign(planned, NO_LIMIT)) == asked_back(targets)


@given(one_class(), st.integers(0, 6))
def test_nobody_gets_more_than_the_bound(topics, bound):
    targets = assign(topics, bound)
    given_to = loads(targets)
    members = next(iter(topics.values())).subscribers
    partitions = sum(len(shares.owners) for shares in topics.values())
    assert max(given_to.values(), default=0) <= bound
    assert sum(given_to.values()) == min(partitions, bound * len(members))


def test_each_topic_is_spread_when_a_member_comes():
    topics = {topic(n): Shares((1, 2), [1] * 4, [1] * 4) for n in range(3)}
    targets = assign(topics, NO_LIMIT)
    assert [sorted(numbers) for numbers in targets.values()] == [[1, 1, 2, 2]] * 3
