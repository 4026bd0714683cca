"""The catalogue of topics: what may be created, and what survives a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import (
    ConfigError,
    DataFolderError,
    PenstockError,
    ResourceLimitError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.core.storage import Storage
from penstock.ipc import layout as lo
from penstock.ipc.messages import TopicSettings
from penstock.server.config import NodeConfig
from penstock.server.node.topic_catalog import Catalog, check_settings, check_topic_name

CONFIG = NodeConfig("/nowhere", partitions_max=20, topics_max=5)


def always(_page: int) -> bool:
    return True


def create(
    catalog: Catalog, name: str, partitions: int = 1, free: Callable[[int], bool] = always
) -> list[int]:
    settings = TopicSettings(partitions=partitions)
    document, topic = catalog.plan_create(name, settings, CONFIG, free)
    catalog.write(document)
    catalog.apply(document)
    return topic.pages


def alter(catalog: Catalog, name: str, partitions: int) -> list[int]:
    settings = TopicSettings(partitions=partitions)
    document, topic = catalog.plan_alter(name, settings, CONFIG, always)
    catalog.write(document)
    catalog.apply(document)
    return topic.pages


def delete(catalog: Catalog, name: str) -> str:
    document, topic = catalog.plan_delete(name)
    catalog.write(document)
    catalog.apply(document)
    return topic.topic_id


def forget(catalog: Catalog, topic_id: str) -> None:
    document = catalog.plan_forget(topic_id)
    catalog.write(document)
    catalog.apply(document)


def opened(folder) -> Catalog:
    return Catalog.open(str(folder), Storage())


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.integers(1, 8)),
    st.tuples(st.just("alter"), NAMES, st.integers(1, 8)),
    st.tuples(st.just("delete"), NAMES, st.just(0)),
    st.tuples(st.just("forget"), NAMES, st.just(0)),
)


@given(st.lists(STEPS, max_size=25))
def test_a_reopened_catalogue_is_the_same_and_no_page_has_two_owners(memory, steps):
    folder = Path(tempfile.mkdtemp(dir=memory))
    catalog = opened(folder)
    for verb, name, partitions in steps:
        try:
            if verb == "create":
                create(catalog, name, partitions)
            elif verb == "alter":
                before = catalog.find(name).pages
                assert alter(catalog, name, partitions)[: len(before)] == before
            elif verb == "delete":
                delete(catalog, name)
            elif catalog.deleting:
                forget(catalog, min(catalog.deleting))
        except PenstockError:
            pass
        again = opened(folder)
        assert (again.topics, again.deleting) == (catalog.topics, catalog.deleting)
        pages = [
            page
            for topic in (*catalog.topics.values(), *catalog.deleting.values())
            for page in topic.pages
        ]
        assert len(pages) == len(set(pages))
        assert len(catalog.topics) <= CONFIG.topics_max


def test_a_recreated_topic_is_another_topic_on_other_pages(tmp_path):
    catalog = opened(tmp_path)
    assert create(catalog, "orders", 3) == [0, 1, 2]
    first = catalog.find("orders").topic_id
    assert delete(catalog, "orders") == first
    assert create(catalog, "orders", 2) == [3, 4]
    assert catalog.find("orders").topic_id != first
    forget(catalog, first)
    assert create(catalog, "bills", 1) == [0]


def test_a_page_that_a_writer_still_holds_is_not_given_away(tmp_path):
    assert create(opened(tmp_path), "orders", 3, free=lambda page: page % 2 == 1) == [1, 3, 5]


def test_a_failed_write_changes_nothing(tmp_path):
    class Broken(Storage):
        def fsync(self, fd):
            raise StorageError("the device failed")

    catalog = Catalog.open(str(tmp_path), Broken())
    with pytest.raises(StorageError):
        create(catalog, "orders")
    assert catalog.topics == {}
    assert opened(tmp_path).topics == {}


def test_what_is_there_and_what_is_not_is_said(tmp_path):
    catalog = opened(tmp_path)
    create(catalog, "orders", 4)
    with pytest.raises(TopicExistsError, match="'orders' exists with 4 partitions"):
        create(catalog, "orders")
    with pytest.raises(UnknownTopicError, match=r"no topic 'bills'.*create it"):
        catalog.find("bills")
    with pytest.raises(ConfigError, match="has 4 partitions and cannot shrink to 3"):
        alter(catalog, "orders", 3)


def test_bounds_are_named(tmp_path):
    catalog = opened(tmp_path)
    create(catalog, "a", 15)
    with pytest.raises(ResourceLimitError, match="partitions_max=20"):
        create(catalog, "b", 6)
    for name in "bcde":
        create(catalog, name)
    with pytest.raises(ResourceLimitError, match="topics_max"):
        create(catalog, "f")
    with pytest.raises(ResourceLimitError, match="partitions_max=20"):
        alter(catalog, "a", 17)


def test_no_page_left_is_said(tmp_path):
    with pytest.raises(ResourceLimitError, match="only 0 of the 4096 pages"):
        create(opened(tmp_path), "orders", free=lambda page: False)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 200, "...", "-"])
def test_allowed_topic_names(name):
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 201, "a/b", "a b", "ä", "__x", "a\n", "a\0", "../x"]
)
def test_refused_topic_names(name):
    with pytest.raises(ConfigError, match=r"topic name .* is not allowed"):
        check_topic_name(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("partitions", 0),
        ("partitions", 21),
        ("segment_bytes", 1),
        ("segment_bytes", 1 << 41),
        ("segment_age", 0.0),
        ("segment_age", float("nan")),
        ("flush_interval", float("inf")),
        ("record_bytes_max", 0),
        ("record_bytes_max", lo.LANE_CAPACITY_DEFAULT),
        ("retention", -1.0),
        ("retention_bytes", 0),
        ("durability", "always"),
        ("timestamp_type", ""),
        ("cleanup", "both"),
        ("min_compaction_lag", -1.0),
        ("delete_retention", float("inf")),
        ("min_dirty_ratio", 1.5),
    ],
)
def test_a_refused_setting_is_named_with_what_was_given_and_what_is_allowed(field, value):
    settings = msgspec.structs.replace(TopicSettings(), **{field: value})
    with pytest.raises(ConfigError, match=rf"^{field} is .*: allowed are ") as caught:
        check_settings(settings, CONFIG)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "cannot be read"),
        (b'{"schema": 1, "topics": [{"name": "a"}]}', "cannot be read"),
        (b'{"schema": 9}', "schema 9, this build reads up to 1"),
        (
            b'{"schema":1,"topics":[{"name":"a","topic_id":"%s","pages":[1,1],"settings":{}}]}'
            % (b"0" * 32),
            "a page belongs to two partitions",
        ),
        (
            b'{"schema":1,"topics":[{"name":"a","topic_id":"%s","pages":[4096],"settings":{}}]}'
            % (b"0" * 32),
            "a page is outside",
        ),
        (
            b'{"schema":1,"topics":[{"name":"a","topic_id":"../x","pages":[0],"settings":{}}]}',
            "a topic id is not",
        ),
    ],
)
def test_a_catalogue_that_cannot_be_right_is_refused(tmp_path, text, why):
    (tmp_path / "topics.json").write_bytes(text)
    with pytest.raises(DataFolderError, match=rf"topics\.json .*{why}"):
        opened(tmp_path)


def test_partitions_without_a_catalogue_are_not_taken_for_an_empty_node(tmp_path):
    (tmp_path / f"{'ab' * 16}-0").mkdir()
    with pytest.raises(DataFolderError, match=r"has partitions but no topics\.json"):
        opened(tmp_path)
