"""How the node and its writers write log lines: text for people, or one JSON object a line.

The fields of a JSON line, besides time, level, logger, process and message, are taken from typed
values alone and never out of the text:

    extra={...} of the call          as they are
    an argument with `log_fields`    those: topic and partition of a partition, pid of a client
    an argument that is an exception `reason` and `error` (its class), and `errno` if it has one

Loaded by writers: imports nothing that the data path does not need.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, Final

import msgspec

FORMATS: Final = ("text", "json")
FORMAT_VARIABLE: Final = "PENSTOCK_LOG_FORMAT"
_KNOWN: Final = {*logging.makeLogRecord({}).__dict__, "asctime", "message", "taskName"}

logger = logging.getLogger("penstock")


class JsonFormatter(logging.Formatter):
    """One object a line. `process` says which part of the node writes: `node`, `writer-0`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": iso_time(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": self._process,
            "process_id": record.process,
            "message": record.getMessage(),
        }
        arguments = record.args if isinstance(record.args, tuple) else (record.args,)
        for argument in arguments:
            fields |= fields_of(argument)
        fields |= {name: value for name, value in vars(record).items() if name not in _KNOWN}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(fields, enc_hook=str).decode()
        except (UnicodeEncodeError, msgspec.MsgspecError, TypeError):  # a name that is no UTF-8
            plain = {name: ascii(value) for name, value in fields.items()}
            return msgspec.json.encode(plain).decode()


def fields_of(argument: object) -> dict[str, Any]:
    """Returns the fields that an argument of a log call has besides its text."""
    if isinstance(argument, BaseException):
        told: dict[str, Any] = {"reason": str(argument), "error": type(argument).__name__}
        number = getattr(argument, "errno", None)
        return told | ({"errno": number} if isinstance(number, int) else {})
    found = getattr(argument, "log_fields", None)
    return found if isinstance(found, dict) else {}


def iso_time(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 in UTC, to the microsecond."""
    whole = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{int((seconds - whole) * 1e6):06d}Z"


def configure(process: str, level: int | str, kind: str = "text") -> None:
    """Send this process's log to stderr. With `json` nothing but JSON lines is written there: what
    nobody caught is logged as well."""
    handler = logging.StreamHandler(sys.stderr)
    if kind == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_of_thread
    else:
        head = f"%(asctime)s %(levelname)s {process}[{os.getpid()}]"
        handler.setFormatter(logging.Formatter(f"{head} %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logger.critical("this process ends: %s", error, exc_info=(kind, error, trace))


def _log_uncaught_of_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is not None:
        logger.critical(
            "a thread ends: %s", error, exc_info=(type(error), error, arguments.exc_traceback)
        )
