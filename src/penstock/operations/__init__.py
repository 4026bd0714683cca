"""The parts that the command line and the console share: texts that people write and read, and
judgements on groups, transactions and clusters. Owns no connection, and writes nothing anywhere."""

from __future__ import annotations
