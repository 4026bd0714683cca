"""Who is attached to a node; clients that an operator sends away hear it, and come back."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import pytest
from cli_runner import call_cli

import penstock
from penstock import aio
from penstock.client.admin.node import ClientInfo
from penstock.core.errors import ConfigError
from penstock.ipc import operating as op
from penstock.testing import Broker, wait_until

pytestmark = [pytest.mark.over_tcp, pytest.mark.timeout(120)]
WITHIN = 45.0


def named(admin: penstock.Admin, client_id: str, kind: str) -> list[ClientInfo]:
    return [
        each for each in admin.list_clients() if (each.client_id, each.kind) == (client_id, kind)
    ]


def polled(consumer: Any) -> list[bytes | None]:
    return [record.value for record in consumer.poll(timeout=WITHIN)]


def test_clients_are_listed_with_what_they_are(node: Broker, transport: str) -> None:
    topic = node.create_topic()
    with node.connect(client_id="billing") as client, client.admin() as admin:
        before = admin.list_clients()
        with client.producer() as producer, client.consumer(topic):
            producer.send_and_wait(topic, b"x")
            [made] = named(admin, "billing", "producer")
            [read] = named(admin, "billing", "consumer")
            assert int(made.id) < int(read.id)
            where = {
                "shm": ("shm", os.getpid(), "", f"user:{os.geteuid()}"),
                "tcp": ("tcp", 0, "127.0.0.1", "anonymous"),
            }
            found = (made.transport, made.pid, made.address, made.principal)
            assert found == where[transport]
            assert made.since <= read.since
            listed = call_cli("client", "list", "--format", "json", url=node.url).objects
            assert {made.id, read.id} < {each["id"] for each in listed}
            assert call_cli("client", "list", url=node.url).lines[0].split()[:2] == ["ID", "KIND"]
        assert {each.id for each in before} <= {each.id for each in admin.list_clients()}
        assert not named(admin, "billing", "consumer")


def test_lists_come_in_pages(node: Broker) -> None:
    with node.connect() as client, client.admin() as admin:
        others = [client.admin() for _ in range(op.CLIENTS_PER_PAGE + 1)]
        listed = admin.list_clients()
        assert len(listed) > op.CLIENTS_PER_PAGE
        assert len({each.id for each in listed}) == len(listed)
        for other in others:
            other.close()


def test_a_producer_that_is_kicked_hears_it_and_goes_on(
    node: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = node.create_topic()
    with (
        node.connect(client_id="kicked") as client, client.admin() as admin,
        client.producer() as producer,
    ):  # fmt: skip
        producer.send_and_wait(topic, b"before")
        [it] = named(admin, "kicked", "producer")
        with caplog.at_level(logging.INFO):
            ran = call_cli("client", "kick", it.id, url=node.url)
            assert (ran.code, ran.err) == (0, f"sent client {it.id} away\n")
            producer.send_and_wait(topic, b"after", timeout=WITHIN)
            wait_until(lambda: producer.metrics()["reconnects"] == 1, timeout=WITHIN)
        assert f"`penstock client kick {it.id}`" in caplog.text
        [again] = named(admin, "kicked", "producer")
        assert again.id != it.id
        with client.consumer(topic, start="earliest") as consumer:
            seen: list[bytes | None] = []
            while len(seen) < 2:
                seen += polled(consumer)
            assert seen == [b"before", b"after"]


def test_a_member_that_is_kicked_comes_back_to_its_partitions(node: Broker) -> None:
    topic = node.create_topic(partitions=2)
    with (
        node.connect(client_id="member") as client, client.admin() as admin,
        client.producer() as producer,
        client.consumer(topic, group=f"{topic}.g", start="earliest") as member,
    ):  # fmt: skip
        producer.send_and_wait(topic, b"1", partition=0)
        assert polled(member) == [b"1"]
        generation = admin.describe_group(member.group).generation
        [it] = named(admin, "member", "consumer")
        admin.kick_client(it.id)
        producer.send_and_wait(topic, b"2", partition=1)
        assert polled(member) == [b"2"]

        def is_back() -> bool:  # a poll that finds records need not look for the node
            member.poll(timeout=0.05)
            return member.metrics()["reconnects"] == 1

        wait_until(is_back, timeout=WITHIN)
        assert admin.describe_group(member.group).generation == generation


def test_the_reason_comes_by_the_connection_that_ends(node: Broker) -> None:
    with node.connect(client_id="told") as client, client.admin() as admin:
        known = {each.id for each in admin.list_clients()}
        other = client.admin()
        [it] = [each for each in named(admin, "told", "admin") if each.id not in known]
        admin.kick_client(it.id)
        said = wait_until(other._session.farewell, timeout=WITHIN)
        assert str(said).endswith(
            f"sent this admin away (`penstock client kick {it.id}`): connect again if that is right"
        )
        assert other.list_topics() == admin.list_topics()  # it attaches again by itself
        other.close()


def test_bad_ids_and_oneself_are_refused(node: Broker) -> None:
    with node.connect(client_id="oneself") as client, client.admin() as admin:
        [me] = named(admin, "oneself", "admin")
        for bad in ("", "x", "-1", "1-", "1-2-3", "0-1", "70000-1", "9" * 30, "1;2"):
            with pytest.raises(ConfigError, match="is no id of a client"):
                admin.kick_client(bad)
        with pytest.raises(ConfigError, match="is attached: `penstock client list`"):
            admin.kick_client("123456789012")
        with pytest.raises(ConfigError, match="is the one that asks"):
            admin.kick_client(me.id)
        with pytest.raises(
            ConfigError, match=r"broker 7 answers for itself, and this node is alone"
        ):
            admin.kick_client("7-1")
        ran = call_cli("client", "kick", "123456789012", "x", url=node.url)
        assert (ran.code, ran.err.count("\n")) == (2, 2)


def test_from_an_event_loop(node: Broker) -> None:
    async def work() -> None:
        async with await aio.connect(node.url, client_id="looped") as client:
            admin = await client.admin()
            topic = node.create_topic()
            async with client.consumer(topic):
                [it] = [
                    each for each in await admin.list_clients()
                    if (each.client_id, each.kind) == ("looped", "consumer")
                ]  # fmt: skip
                await admin.kick_client(it.id)
                assert it.id not in [each.id for each in await admin.list_clients()]

    asyncio.run(work())


def test_what_was_kicked_is_counted(node: Broker) -> None:
    with node.connect(client_id="counted") as client, client.admin() as admin:
        before = admin.describe_node().attach["kicked"]
        topic = node.create_topic()
        with client.consumer(topic):
            admin.kick_client(named(admin, "counted", "consumer")[0].id)
        assert admin.describe_node().attach["kicked"] == before + 1
