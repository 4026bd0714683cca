"""Access entries, a question about them, quotas and their use; and open transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.admin.access import AccessEntry, LimitUse, QuotaSetting
from penstock.client.transactions.listing import TransactionDescription
from penstock.cluster.access import Entry, Kind, Operation, Policy
from penstock.console.pages.links import command
from penstock.console.pages.plans import ActionPlan
from penstock.core.errors import ConfigError

ENTRIES_SHOWN = 500
TRANSACTIONS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """May this principal do that? `namespace`: of its key, where that has one."""

    principal: str
    operation: str
    kind: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class SecurityPageModel:
    """`keys`: how many the node authorizes. `answer` None: nothing was asked."""

    entries: tuple[AccessEntry, ...]
    left: int
    quotas: tuple[QuotaSetting, ...]
    uses: tuple[LimitUse, ...]
    keys: int
    counts: tuple[tuple[str, int], ...]
    answer: str | None
    is_allowed: bool


def may(
    question: AccessQuestion, entries: Sequence[AccessEntry], *, keys: bool
) -> tuple[bool, str]:
    """The answer by the same rules that the node has, and the reason."""
    for value, allowed in ((question.operation, list(Operation)), (question.kind, list(Kind))):
        if value not in allowed:
            raise ConfigError(f"{value!r:.50} is none of {', '.join(allowed)}")
    names = {question.principal: question.namespace} if question.namespace else {}
    known = [Entry(one.principal, one.effect, one.operation, one.kind, one.name)
             for one in entries]  # fmt: skip
    asked = (question.principal, question.operation, question.kind, question.name)
    policy = Policy(known, names, keys=keys)
    is_allowed = policy.allows(*asked)
    what = f"{question.operation} {question.kind} {question.name}"
    if policy.is_open:
        return True, f"Yes: {question.principal} may {what}, as there are neither entries nor keys."
    if is_allowed:
        own = Policy([one for one in known if one.effect == "deny"], names, keys=True)
        why = "it is in its own namespace" if own.allows(*asked) else "an entry allows it"
        return True, f"Yes: {question.principal} may {what}: {why}."
    without = Policy([one for one in known if one.effect != "deny"], names, keys=True)
    why = "an entry denies it" if without.allows(*asked) else "no entry allows it"
    return False, f"No: {question.principal} may not {what}: {why}."


def entry_plan(url: str, entry: AccessEntry, *, add: bool, denied_after: str = "") -> ActionPlan:
    told = f"{entry.effect} {entry.principal} {entry.operation} {entry.kind} {entry.name}"
    words = ["acl", "add" if add else "remove", entry.principal, entry.operation, entry.kind]
    words += [entry.name, *(["--deny"] if entry.effect == "deny" else [])]
    says = [f"The entry `{told}` {'is added' if add else 'goes'}.",
            "It holds at once, for clients on other hosts within a second."]  # fmt: skip
    if denied_after:
        says.append(denied_after)
    return ActionPlan(
        f"{'Add' if add else 'Remove'} an access entry", tuple(says), command(url, *words),
        "Add it" if add else "Remove it", "/security",
    )  # fmt: skip


def abort_plan(url: str, found: TransactionDescription) -> ActionPlan:
    topics = f" in {', '.join(found.topics)}" if found.topics else ""
    return ActionPlan(
        f"Abort {found.transactional_id}",
        (f"What it has sent for {found.open_for:.0f} s{topics} counts never.",
         "Its producer is fenced: it fails at its next call, and has to be started again.",
         "Readers of committed records go on behind it."),
        command(url, "transaction", "abort", found.transactional_id), "Abort it", "/transactions",
    )  # fmt: skip
