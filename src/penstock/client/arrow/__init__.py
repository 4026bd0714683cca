"""Arrow on both ends: batches leave as Arrow streams, and anything that is one can be sent.

Speaks the Arrow C data and C stream interfaces by ctypes, so that the base install needs no Arrow
library; `cdata` draws their structs. Values and keys are not copied on the way out.
"""

from __future__ import annotations
