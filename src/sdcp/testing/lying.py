"""How peers of a world lie, as chances: a drafter, the cache, and a second router with a certificate of its own.

Here are the chances alone; `lying_troupe` lets them happen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Liars:
    """Chances, from 0 to 1, of each lie; 0 throughout is honesty.

    evict: an object goes although it is leased, before a step.
    """

    evict: float = 0.0


HONEST: Final = Liars()
