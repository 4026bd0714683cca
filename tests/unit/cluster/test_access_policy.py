"""Access decisions against a reference that is too simple to be wrong."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.access import (
    CLUSTER,
    Entry,
    NamespaceLimits,
    Operation,
    Policy,
    Tally,
    check_entry,
    check_limits,
    check_namespace,
    check_principal,
    literal_prefix,
)
from penstock.core.errors import ConfigError, ResourceLimitError

PRINCIPALS = ("ann", "bob", "cy")
NAMES = ("orders", "orders.eu", "orders.us", "acme.a", "acme.b.c", "acmes", "", "__coordinator")
PATTERNS = ("orders", "orders.*", "orders*", "acme.*", "acme.a", "*", "__*", "__coordinator")

entries = st.builds(
    Entry,
    principal=st.sampled_from((*PRINCIPALS, "*")),
    effect=st.sampled_from(("allow", "deny")),
    operation=st.sampled_from((*Operation, "all")),
    kind=st.sampled_from(("topic", "group")),
    name=st.sampled_from(PATTERNS),
)


def reference(access, namespaces, keys, principal, operation, kind, name):
    """The truth table of `penstock.cluster.access.policy`, entry by entry."""
    if not access and not keys:
        return True

    def fits(entry, effect):
        if entry.effect != effect or entry.principal not in (principal, "*") or entry.kind != kind:
            return False
        operations = {entry.operation} if entry.operation != "all" else set(map(str, Operation))
        if effect == "allow":
            operations.add("describe")
        if operation not in operations:
            return False
        if entry.name.endswith("*"):
            ours = kind == "topic" and name[:2] == "__"
            if ours and entry.name[:2] != "__" and effect == "allow":
                return False
            return name[: len(entry.name) - 1] == entry.name[:-1]
        return entry.name == name

    if any(fits(entry, "deny") for entry in access):
        return False
    own = namespaces.get(principal)
    if own is not None and kind != "cluster" and name.split(".")[0] == own and "." in name:
        return True
    return any(fits(entry, "allow") for entry in access)


@pytest.mark.parametrize("named", ["ann", "*"])
@pytest.mark.parametrize("pattern", ["orders", "ord*", "*"])
def test_a_denial_wins_over_an_allowance_and_over_a_namespace(named, pattern):
    allowed = Entry("ann", "allow", "all", "topic", "*")
    denied = Entry(named, "deny", "write", "topic", pattern)
    for listed in ([allowed, denied], [denied, allowed], [denied]):
        policy = Policy(listed, {"ann": "orders"})
        assert not policy.allows("ann", "write", "topic", "orders")
        assert policy.allows("ann", "read", "topic", "orders") == (allowed in listed)
    own = Policy([Entry(named, "deny", "write", "topic", "acme.*")], {"ann": "acme"})
    assert not own.allows("ann", "write", "topic", "acme.a")
    assert own.allows("ann", "read", "topic", "acme.a")
    assert not own.allows("ann", "read", "topic", "acmes")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(entries, max_size=8),
    st.dictionaries(st.sampled_from(PRINCIPALS), st.just("acme")),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from((*PRINCIPALS, "stranger")),
            st.sampled_from(list(Operation)),
            st.sampled_from(("topic", "group")),
            st.sampled_from(NAMES),
        ),
        max_size=20,
    ),
)
def test_decisions_are_those_of_the_truth_table(access, namespaces, keys, asked):
    policy = Policy(access, namespaces, keys=keys)
    for question in [*asked, *asked]:  # the second time they are remembered
        expected = reference(access, namespaces, keys, *question)
        assert policy.allows(*question) == expected, question


@settings(max_examples=300, deadline=None)
@given(
    st.lists(entries, max_size=8),
    st.dictionaries(st.sampled_from(PRINCIPALS), st.just("acme")),
    st.sampled_from(("", "o", "orders", "orders.", "orders.e", "acme", "acme.", "acme.b")),
    st.sampled_from(NAMES),
)
def test_what_is_allowed_for_a_prefix_is_allowed_for_each_name(access, namespaces, prefix, name):
    policy = Policy(access, namespaces, keys=True)
    whole = policy.allows_all("ann", "read", "topic", prefix)
    if whole and name.startswith(prefix) and not name.startswith("__"):
        assert policy.allows("ann", "read", "topic", name)


def test_a_denial_below_a_prefix_spoils_it():
    allow = Entry("ann", "allow", "read", "topic", "orders.*")
    deny = Entry("*", "deny", "read", "topic", "orders.eu.secret")
    assert Policy([allow]).allows_all("ann", "read", "topic", "orders.eu.")
    assert not Policy([allow, deny]).allows_all("ann", "read", "topic", "orders.eu.")
    assert Policy([allow, deny]).allows_all("ann", "read", "topic", "orders.us.")
    assert not Policy([allow]).allows_all("ann", "read", "topic", "")


def test_without_entries_and_keys_everybody_may_everything():
    assert Policy().allows("anonymous", "delete", "topic", "x" * 300)
    assert not Policy(keys=True).allows("anonymous", "describe", "topic", "x")
    assert not Policy([Entry("ann", "deny", "read", "topic", "x")]).allows(
        "bob", "read", "topic", "y"
    )


def test_a_namespace_is_no_way_to_the_cluster_and_ends_at_its_dot():
    policy = Policy((), {"ann": "acme"}, keys=True)
    assert policy.allows("ann", "delete", "topic", "acme.orders")
    assert policy.allows("ann", "write", "transactional_id", "acme.pay")
    assert not policy.allows("ann", "read", "topic", "acme")
    assert not policy.allows("ann", "read", "topic", "acmes.x")
    assert not policy.allows("ann", "alter", "cluster", CLUSTER)
    assert not policy.allows("bob", "read", "topic", "acme.orders")


def test_decisions_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("penstock.cluster.access.policy.DECISIONS_MAX", 10)
    policy = Policy([Entry("ann", "allow", "read", "topic", "t1*")])
    for number in range(100):
        assert policy.allows("ann", "read", "topic", f"t{number}") == str(number).startswith("1")
    assert len(policy._decided) <= 10


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"principal": ""}, "principal"),
        ({"principal": "user:0"}, "host"),
        ({"principal": "a b"}, "principal"),
        ({"effect": "maybe"}, "allow"),
        ({"operation": "fly"}, "describe"),
        ({"kind": "queue"}, "group"),
        ({"name": ""}, "name"),
        ({"name": "a*b"}, "last"),
        ({"name": "x" * 201}, "200"),
        ({"name": "a\nb"}, "printable"),
        ({"kind": "cluster", "name": "east"}, "cluster"),
    ],
)
def test_entries_that_mean_nothing_are_refused(change, word):
    good = {"principal": "ann", "effect": "allow", "operation": "read", "kind": "topic",
            "name": "orders.*"}  # fmt: skip
    check_entry(Entry(**good))
    with pytest.raises(ConfigError, match=word):
        check_entry(Entry(**(good | change)))


def test_nobody_can_be_called_like_a_local_user_or_the_keyless():
    check_principal("ann@host-1.example_x")
    for name in ("user:1000", "anonymous", "*", "a/b", "x" * 101):
        with pytest.raises(ConfigError):
            check_principal(name)
    check_principal("anonymous", or_anonymous=True)
    check_namespace("acme.eu")
    for name in ("", "acme.", "__x", "a b", "a*"):
        with pytest.raises(ConfigError):
            check_namespace(name)


@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"[a-c.\\*?+(|)\[\]{2}^]{0,8}", fullmatch=True), st.text("abc.", max_size=6))
def test_whatever_a_pattern_matches_begins_with_its_literal_prefix(pattern, name):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            matched = re.fullmatch(pattern, name)
    except re.error:
        return
    if matched:
        assert name.startswith(literal_prefix(pattern))


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [(r"acme\.orders\..*", "acme.orders."), ("acme.*", "acme"), ("a|b", ""), ("ab?c", "a"),
     ("(?i)acme", ""), (r"ab\d", "ab"), ("abc", "abc"), ("ab{0}c", "a")],
)  # fmt: skip
def test_literal_prefixes(pattern, prefix):
    assert literal_prefix(pattern) == prefix


def test_limits_of_a_namespace():
    limits = [NamespaceLimits("acme", topics_max=2, partitions_max=5)]
    there = {"acme.a": 3, "other": 100, "acmes": 100}
    check_limits(limits, "acme.b", Tally(1, 2), there)
    check_limits(limits, "other.b", Tally(1, 1000), there)
    with pytest.raises(ResourceLimitError, match="partitions_max=5"):
        check_limits(limits, "acme.b", Tally(1, 3), there)
    with pytest.raises(ResourceLimitError, match="topics_max=2"):
        check_limits(limits, "acme.c", Tally(1, 1), there | {"acme.b": 1})
    check_limits([NamespaceLimits("acme", 0, 0)], "acme.a", Tally(0, 0), there)
