"""Holds and checks the arguments of `App.consumer` and `App.share_consumer`.

Options of the consumer itself are the consumer's to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.client.app.handler import Handler
from penstock.client.consumer.group.options import check_group_name
from penstock.client.validation import check_choice, check_integer, check_range
from penstock.core.errors import ConfigError

if TYPE_CHECKING:
    from penstock.client.retry.policy import Retry

OnError = Literal["stop", "skip"]
AppGuarantee = Literal["at-least-once", "at-most-once"]

CONCURRENCY_MAX: Final = 256
RETRIES_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Subscription:
    """The arguments of `App.consumer`."""

    handler: Handler
    topics: tuple[str, ...]
    group: str
    concurrency: int
    on_error: OnError
    retries: int
    retry_backoff: float
    retry_backoff_max: float
    retry: Retry | None
    commit_interval: float
    guarantee: AppGuarantee
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check_workers(self.group, self.concurrency)
        check_choice("on_error", self.on_error, ("stop", "skip"))
        check_integer("retries", self.retries)
        check_range("retries", self.retries, 0, RETRIES_MAX)
        check_range("retry_backoff", self.retry_backoff, 0.0, 3600.0)
        check_range("retry_backoff_max", self.retry_backoff_max, 0.0, 86_400.0)
        check_range("commit_interval", self.commit_interval, 0.001, 3600.0)
        if self.is_at_most_once and self.retries:
            raise ConfigError(
                f"consumer of group {self.group!r}: retries={self.retries} would handle a record "
                "more than once, and it is at-most-once: leave retries out"
            )
        has_pattern = self.options.get("pattern") is not None
        if not self.topics and not has_pattern:
            raise ConfigError(f"consumer of group {self.group!r}: name topics, or give pattern=")
        if self.retry is not None:
            self._check_retry(has_pattern)

    def _check_retry(self, has_pattern: bool) -> None:
        from penstock.client.retry.policy import Retry  # few have one

        if not isinstance(self.retry, Retry):
            raise TypeError(
                f"retry={self.retry!r} must be a penstock.Retry, not {type(self.retry).__name__}"
            )
        beside = [
            name for name, is_given in (
                ("retries", self.retries), ("on_error", self.on_error != "stop"),
                ("guarantee", self.is_at_most_once), ("pattern", has_pattern),
            ) if is_given
        ]  # fmt: skip
        if beside:
            raise ConfigError(
                f"consumer of group {self.group!r}: retry= says what becomes of a record whose "
                "handler fails, by way of retry topics of topics that are named, at least once: "
                f"leave {', '.join(f'{name}=' for name in beside)} out"
            )

    @property
    def is_at_most_once(self) -> bool:
        return self.guarantee == "at-most-once"


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """The arguments of `App.share_consumer`."""

    handler: Handler
    topics: tuple[str, ...]
    group: str
    concurrency: int
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check_workers(self.group, self.concurrency)
        if not self.topics:
            raise ConfigError(f"share_consumer of group {self.group!r}: name topics")


def _check_workers(group: str, concurrency: int) -> None:
    check_group_name(group)
    check_integer("concurrency", concurrency)
    check_range("concurrency", concurrency, 1, CONCURRENCY_MAX)
