"""The pages of records: a list with filters, one record, and one that is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from penstock.client.consumer.offsets import Offset
from penstock.console.browse import RecordQuery, browse, one_record
from penstock.console.link import ANSWER_SECONDS
from penstock.console.pages.links import command, page_link
from penstock.console.pages.plans import ActionDone, ActionPlan
from penstock.console.pages.records import (
    RecordDraft,
    bytes_of,
    draft_of,
    headers_of,
    produce_plan,
    row_of,
    view_of,
)
from penstock.console.web.shell import Action, Form, integer, wanted
from penstock.core import errors as er
from penstock.operations import values

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.console.link import ConsoleSeat
    from penstock.console.web.shell import ConsoleShell

FILTERS: Final = ("partition", "start", "key", "key_kind", "path", "equals", "where")


# --- pages ----------------------------------------------------------------------------------------
async def records(shell: ConsoleShell, request: Request) -> Response:
    given, query = _given_filters(request), asked_query(request)
    found = await shell.ask(lambda seat: browse(seat.client, query))
    after = None
    if found.next is not None:
        at = ",".join(f"{number}:{offset}" for number, offset in found.next.items())
        after = page_link("records", topic=query.topic, at=at, **given)
    rows = sorted(found.records, key=lambda one: (one.timestamp, one.partition, one.offset))
    return shell.page(
        request, "records.html", topic=query.topic, given=given, found=found, query=query,
        rows=[row_of(one) for one in rows], after=after,
        follow=page_link("records/follow", topic=query.topic, **given),
        command=_command(shell.config.url, query),
    )  # fmt: skip


def _given_filters(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in FILTERS}


def asked_query(request: Request) -> RecordQuery:
    """The search that an address means. Raises `ConfigError`."""
    topic, at = wanted(request.query_params, "topic"), request.query_params.get("at", "")
    return _query(topic, _given_filters(request), at)


def _query(topic: str, given: dict[str, str], at: str) -> RecordQuery:
    key = bytes_of(given["key"], given["key_kind"] or "text", "key") if given["key"] else None
    return RecordQuery(
        topic=topic,
        partition=integer(given["partition"], "partition", 0, 1 << 20),
        start=_place(given["start"]) if given["start"] else None,
        at=_positions(at) if at else None,
        key=key, path=given["path"], equals=given["equals"] or "*", where=given["where"],
    )  # fmt: skip


def _place(text: str) -> Offset:
    """A place as on the command line; a moment may lack its sign."""
    is_moment = "T" in text or text.count("-") == 2
    return values.place(f"@{text}" if is_moment and not text.startswith("@") else text)


def _positions(text: str) -> dict[int, int]:
    """Reads 0:57,1:33."""
    found: dict[int, int] = {}
    for part in text.split(","):
        number, _, offset = part.partition(":")
        first, then = integer(number, "partition", 0, 1 << 20), integer(offset, "offset")
        if first is None or then is None:
            raise er.ConfigError(f"{part!r:.50} is no PARTITION:OFFSET")
        found[first] = then
    return found


def _command(url: str, query: RecordQuery) -> str:
    if query.has_filter:
        return command(url, "sql", _sql(query))
    partition = () if query.partition is None else ("-p", query.partition)
    start = "-50" if query.start is None else "start"
    if query.start is not None and query.start.place == "exact":
        start = str(query.start.number)
    return command(url, "consume", query.topic, *partition, "-o", start, "-n", 50,
                   "-f", r"%p %o %T %k %v\n")  # fmt: skip


def _sql(query: RecordQuery) -> str:
    """The same search for `penstock sql`."""
    conditions = [] if query.partition is None else [f"partition = {query.partition}"]
    if query.key is not None:
        conditions.append(f"hex(key) = '{query.key.hex().upper()}'")
    if query.path:
        field = f"text->>'$.{_quoted(query.path)}'"
        is_any = query.equals == "*"
        conditions.append(
            f"{field} is not null" if is_any else f"{field} = '{_quoted(query.equals)}'"
        )
    if query.where:
        conditions.append(f"({query.where})")
    name = query.topic.replace('"', '""')
    source = f'(select *, decode(value) as text from "{name}")'
    return (
        f'select partition, "offset", text from {source} where {" and ".join(conditions)} limit 50'
    )


def _quoted(text: str) -> str:
    return text.replace("'", "''")


async def record(shell: ConsoleShell, request: Request) -> Response:
    topic, partition, offset = _record_place(request)
    view = request.query_params.get("as", "")
    found, end = await shell.ask(lambda seat: one_record(seat.client, topic, partition, offset))
    return shell.page(
        request, "record.html", record=view_of(found, view, end, shell.config.url), asked=offset
    )


async def raw(shell: ConsoleShell, request: Request) -> Response:
    """The bytes of a value, as a file: never shown as a page of the console."""
    topic, partition, offset = _record_place(request)
    found, _ = await shell.ask(lambda seat: one_record(seat.client, topic, partition, offset))
    return Response(
        found.value or b"", media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="record-{partition}-{found.offset}.bin"',
            "Content-Security-Policy": "default-src 'none'; sandbox",
        },
    )  # fmt: skip


def _record_place(request: Request) -> tuple[str, int, int]:
    query = request.query_params
    partition, offset = (
        integer(query.get("partition"), "partition"),
        integer(query.get("offset"), "offset"),
    )
    if partition is None or offset is None:
        raise er.ConfigError("name the partition and the offset of the record")
    return wanted(query, "topic"), partition, offset


async def produce(shell: ConsoleShell, request: Request) -> Response:
    """The form of a record; with an offset, what is there already, to be edited."""
    topic = wanted(request.query_params, "topic")
    draft = RecordDraft(topic)
    if request.query_params.get("offset"):
        topic, partition, offset = _record_place(request)
        found, _ = await shell.ask(lambda seat: one_record(seat.client, topic, partition, offset))
        draft = draft_of(found)
    else:
        await shell.ask(lambda seat: seat.admin.describe_topic(topic))
    return shell.page(request, "produce.html", draft=draft)


# --- the action -----------------------------------------------------------------------------------
def _given(form: Form) -> dict[str, Any]:
    return {
        "topic": wanted(form, "topic"),
        "partition": integer(form.get("partition"), "partition", 0, 1 << 20),
        "key": bytes_of(form.get("key", ""), form.get("key_kind", "none"), "key"),
        "value": bytes_of(form.get("value", ""), form.get("value_kind", "text"), "value"),
        "headers": headers_of(form.get("headers", "")),
    }


def plan_produce(seat: ConsoleSeat, form: Form) -> ActionPlan:
    given = _given(form)
    seat.admin.describe_topic(given["topic"])
    return produce_plan(seat.url, **given)


def do_produce(seat: ConsoleSeat, form: Form) -> ActionDone:
    given = _given(form)
    with seat.client.producer(acks="all") as producer:
        receipt = producer.send_and_wait(timeout=ANSWER_SECONDS, **given)
    page = page_link(
        "record", topic=given["topic"], partition=receipt.partition, offset=receipt.offset
    )
    return ActionDone(
        f"The record is at offset {receipt.offset} of partition {receipt.partition}.", page
    )


PAGES: Final = (
    ("/records", records), ("/record", record), ("/record/raw", raw), ("/produce", produce)
)  # fmt: skip
ACTIONS: Final = (Action("/record/produce", plan_produce, do_produce),)
