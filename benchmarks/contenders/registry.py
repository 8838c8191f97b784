"""All contenders by name, each set up as its own documentation recommends for speed."""

from __future__ import annotations

from benchmarks.contenders.engines import ENGINES
from benchmarks.contenders.pools import POOLS

CONTENDERS = {contender.name: contender for contender in (*POOLS, *ENGINES)}
