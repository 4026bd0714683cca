"""A writer process that can be told to misbehave, as `writer_command` of a node under test.

`python rigged_writer.py FOLDER`: while FOLDER/hold-syncs exists, no fdatasync ends; the pass that
finds FOLDER/die-unanswered dies after its append, before it answers.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

HOLD_SYNCS = "hold-syncs"
DIE_UNANSWERED = "die-unanswered"


def main(folder: Path) -> int:
    from penstock.ipc.writer import Writer
    from penstock.server.writer import main as writer_main

    sync, answer = os.fdatasync, Writer._answer

    def held(fd: Any) -> None:
        while (folder / HOLD_SYNCS).exists():
            time.sleep(0.02)
        sync(fd)

    def dies(self: Writer, taken: Any, answers: Any) -> None:
        if (folder / DIE_UNANSWERED).exists():
            (folder / DIE_UNANSWERED).unlink()
            os._exit(9)
        answer(self, taken, answers)

    os.fdatasync = held
    Writer._answer = dies  # type: ignore[method-assign]
    return writer_main.main()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv.pop(1))))
