"""The pages of access and of transactions, and their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.client.admin.access import AccessEntry
from penstock.client.transactions.abort import abort_transaction, find_transaction
from penstock.cluster.access import Kind, Operation
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.pages.security import (
    ENTRIES_SHOWN,
    TRANSACTIONS_SHOWN,
    AccessQuestion,
    SecurityPageModel,
    abort_plan,
    entry_plan,
    may,
)
from penstock.console.web.shell import Action, Form, wanted

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.console.link import ConsoleSeat
    from penstock.console.web.shell import ConsoleShell

ASKED: Final = ("principal", "operation", "kind", "name", "namespace")
OPEN: Final = "From the first entry on, clients on other hosts may do only what an entry allows."


async def security(shell: ConsoleShell, request: Request) -> Response:
    asked = {name: request.query_params.get(name, "").strip() for name in ASKED}
    question = AccessQuestion(**asked) if asked["principal"] else None
    model = await shell.ask(lambda seat: _look(seat, question))
    return shell.page(
        request, "security.html", model=model, asked=asked, operations=list(Operation),
        kinds=list(Kind),
    )  # fmt: skip


def _look(seat: ConsoleSeat, question: AccessQuestion | None) -> SecurityPageModel:
    entries = seat.admin.list_access()
    node = seat.admin.describe_node()
    keys = node.access.get("keys", 0)
    is_allowed, answer = (
        (False, None) if question is None else may(question, entries, keys=bool(keys))
    )
    return SecurityPageModel(
        tuple(entries[:ENTRIES_SHOWN]), max(0, len(entries) - ENTRIES_SHOWN),
        tuple(seat.admin.list_quotas()), tuple(seat.admin.list_uses()), keys,
        tuple(sorted(node.access.items())), answer, is_allowed,
    )  # fmt: skip


async def transactions(shell: ConsoleShell, request: Request) -> Response:
    found = await shell.ask(lambda seat: seat.admin.list_transactions())
    ranked = sorted(found, key=lambda each: (-each.open_for, each.transactional_id))
    return shell.page(
        request, "transactions.html", found=ranked[:TRANSACTIONS_SHOWN],
        left=max(0, len(ranked) - TRANSACTIONS_SHOWN),
    )  # fmt: skip


# --- actions --------------------------------------------------------------------------------------
def _entry(form: Form) -> AccessEntry:
    return AccessEntry(
        wanted(form, "principal"), "deny" if form.get("effect") == "deny" else "allow",
        wanted(form, "operation"), wanted(form, "kind"), form.get("name", "").strip() or "*",
    )  # fmt: skip


def plan_add(seat: ConsoleSeat, form: Form) -> ActionPlan:
    says = "" if seat.admin.list_access() else OPEN
    return entry_plan(seat.url, _entry(form), add=True, denied_after=says)


def do_add(seat: ConsoleSeat, form: Form) -> ActionDone:
    changed = seat.admin.add_access(_entry(form))
    return ActionDone("The entry is added." if changed else "It was there already.", "/security")


def plan_remove(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return entry_plan(seat.url, _entry(form), add=False)


def do_remove(seat: ConsoleSeat, form: Form) -> ActionDone:
    changed = seat.admin.remove_access(_entry(form))
    told: Any = "The entry is removed." if changed else "There is no such entry."
    return ActionDone(told, "/security")


def plan_abort(seat: ConsoleSeat, form: Form) -> ActionPlan:
    return abort_plan(seat.url, find_transaction(seat.client, wanted(form, "id")))


def do_abort(seat: ConsoleSeat, form: Form) -> ActionDone:
    found = abort_transaction(seat.client, wanted(form, "id"))
    return ActionDone(f"What {found.transactional_id} had open is aborted.", "/transactions")


PAGES: Final = (("/security", security), ("/transactions", transactions))
ACTIONS: Final = (
    Action("/security/add", plan_add, do_add),
    Action("/security/remove", plan_remove, do_remove),
    Action("/transactions/abort", plan_abort, do_abort),
)
