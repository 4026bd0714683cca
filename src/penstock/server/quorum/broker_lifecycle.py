"""The registration of this broker with the controller: registered, alive, or on its way out.

    none --register--> fenced --its own registration is replayed--> current, and unfenced
                          +--a later life, or nothing heard--> registered again

The image is passed on only while it is current. Entries before the broker's own registration were
for an earlier life of it: a broker that obeyed them would lead again in a past epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Final

from penstock.cluster.controller import Image, Place
from penstock.core.errors import (
    AttachRefusedError,
    ClosedError,
    PenstockError,
    PenstockTimeout,
    StaleBrokerEpochError,
)
from penstock.server.node.data_folder import DataFolder
from penstock.server.quorum.controller_client import ControllerClient
from penstock.server.quorum.controller_requests import Heartbeat, Register

logger = logging.getLogger("penstock.quorum")

BEATS: Final = 5
"""In a session."""
LINGERS: Final = 2
"""Sessions for which a past life with this broker's number and another folder may still be
unmissed: its disk was replaced."""
TRY: Final = 5.0
"""Seconds for one try to register."""
PAUSE: Final = 1.0
"""Between two tries that were refused."""


class BrokerLifecycle:
    """`changed(image, places)`: as `Quorum`'s."""

    def __init__(
        self,
        node: int,
        folder: DataFolder,
        rack: str,
        session_timeout: float,
        asking: ControllerClient,
        image: Callable[[], Image],
        changed: Callable[[Image, set[Place] | None], None],
    ) -> None:
        self.broker_epoch: int | None = None
        self.is_current = False
        self.is_fenced = True
        self.lost: tuple[Place, ...] = ()
        """Logs that are gone, which the controller does not know yet."""
        self.offline: Callable[[], tuple[Place, ...]] = tuple
        """Logs that take nothing."""
        self._node = node
        self._folder = folder
        self._rack = rack
        self._session = session_timeout
        self._asking = asking
        self._image = image
        self._changed = changed
        self._incarnation = os.urandom(16)
        self._endpoints: tuple[str, ...] = ()
        self._was_clean = True
        """Whether nothing is missing that the controller does not know of."""
        self._keeps_count = folder.was_clean
        """Whether what the folder counts is where it was: it was closed, or is of this process."""
        self._known: int | None = None
        """The epoch that the controller has for this broker, where its folder has another one."""
        self._is_leaving = False
        self._may_stop = asyncio.Event()
        self._kick = asyncio.Event()
        self._beats: asyncio.Task[None] | None = None

    async def register(self, endpoints: tuple[str, ...], *, was_clean: bool) -> int:
        """Registers this broker and returns its epoch. Repeats until a controller is there, and
        raises the controller's refusal. A start without `was_clean` is reported until a controller
        knows it, even if other registrations come between. While another folder has its number it
        asks again: that broker may be gone, and not missed yet."""
        if self._beats is not None and endpoints != self._endpoints:
            self.renew()  # a registration does not change
        self._endpoints = endpoints
        self._was_clean = self._was_clean and was_clean
        refused_from: float | None = None
        while True:
            try:
                epoch = await self._register()
                break
            except (PenstockTimeout, AttachRefusedError) as error:
                if isinstance(error, AttachRefusedError):
                    refused_from = refused_from or time.monotonic()
                    if time.monotonic() - refused_from > LINGERS * self._session:
                        raise
                logger.warning("broker %d is not registered yet: %s", self._node, error)
                await asyncio.sleep(self._session / BEATS)
        if self._beats is None:
            self._beats = asyncio.create_task(self._beat(), name="heartbeats")
        return epoch

    async def _register(self) -> int:
        incarnation, after = self._incarnation, self._folder.record.broker_epoch
        request = Register(
            self._node, incarnation, self._folder.uuid, self._endpoints, self._rack,
            was_clean=self._was_clean, after=after, keeps_count=self._keeps_count, lost=self.lost,
            offline=self.offline(), instead_of=after if self._known is None else self._known,
        )  # fmt: skip
        answer = await self._asking.ask(request, TRY)
        if answer.ask_again:
            self._known = answer.broker_epoch
        if answer.ask_again or incarnation != self._incarnation:  # renewed meanwhile
            return await self._register()
        self._known = None
        # Before anybody is told that it is there:
        self._folder.registered_as(answer.broker_epoch, answer.id_block)
        self._keeps_count = True
        self.broker_epoch = answer.broker_epoch
        self.is_fenced = True
        self.lost = ()
        self._was_clean = True  # nothing is lost while this process lives
        logger.info("broker %d is registered with epoch %d", self._node, self.broker_epoch)
        self.image_changed(set())
        return self.broker_epoch

    def renew(self) -> None:
        """A new life begins, and the one before is over: what it said does not count any more."""
        self._incarnation = os.urandom(16)
        self._lost()

    def _lost(self) -> None:
        self.broker_epoch = None
        self.is_current = False
        self.is_fenced = True
        self._kick.set()

    def image_changed(self, places: set[Place] | None) -> None:
        """Tell it on, if it is for this life."""
        epoch, image = self.broker_epoch, self._image()
        if epoch is None or not image.is_current(self._node, epoch):
            return
        if not self.is_current:
            self.is_current = True
            places = None
            self._kick.set()  # the controller waits to hear that
        self._changed(image, places)

    # --- heartbeats ---
    async def _beat(self) -> None:
        while True:
            self._kick.clear()
            try:
                if self.broker_epoch is None:
                    await self._register()
                else:
                    await self._say(self.broker_epoch)
            except StaleBrokerEpochError as error:
                logger.warning("broker %d registers again: %s", self._node, error)
                self._lost()
            except ClosedError:
                return
            except PenstockTimeout as error:
                logger.warning("broker %d is not heard: %s", self._node, error)
            except PenstockError as error:
                logger.error("broker %d is not heard: %s", self._node, error)
                await asyncio.sleep(PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._session / BEATS):
                    await self._kick.wait()

    async def _say(self, epoch: int) -> None:
        is_current, is_leaving = self.is_current, self._is_leaving
        request = Heartbeat(self._node, epoch, is_current=is_current, is_leaving=is_leaving)
        answer = await self._asking.ask(request, self._session)
        if epoch != self.broker_epoch:
            return
        self.is_fenced = answer.is_fenced
        if answer.may_stop and is_leaving:
            self._may_stop.set()

    # --- the end ---
    async def leave(self, timeout: float) -> bool:
        """Whether others have taken over what this broker led, in that time."""
        self._is_leaving = True
        self._kick.set()
        if self._beats is None:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._may_stop.wait()
        return self._may_stop.is_set()

    async def close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
