"""What callers hand in as a topic's name: told here and now, and never sent to the node."""

from __future__ import annotations

import pytest

CALLS = {
    "consumer": lambda client, name: client.consumer(name),
    "create": lambda client, name: client.admin().create_topic(name),
    "delete": lambda client, name: client.admin().delete_topic(name),
    "describe": lambda client, name: client.admin().describe_topic(name),
    "trim": lambda client, name: client.admin().trim(name, before="latest"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", [["orders", "paid"], b"orders", None])
def test_a_name_of_another_type_is_no_riddle(node, name, call):
    with node.connect() as client:
        with pytest.raises(TypeError, match=r"a topic's name is str, not (list|bytes|NoneType): "):
            CALLS[call](client, name)
        assert client.admin().list_topics() == []
    assert "malformed" not in node.log_tail()


def test_a_producer_tells_too(node):
    with node.connect() as client, client.producer() as producer:
        with pytest.raises(TypeError, match=r"a topic's name is str, not bytes: b'orders'"):
            producer.send(b"orders", b"x")
        assert client.admin().list_topics() == []
    assert "malformed" not in node.log_tail()
