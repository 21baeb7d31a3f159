"""The cache of the web tools: recent answers in memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_REMEMBERED = 200


class RecentAnswers(Generic[T]):
    """Values that are fresh for a while; the least recently used are dropped first. Thread-safe."""

    def __init__(
        self, seconds: float, max_count: int = MAX_REMEMBERED, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._max_count = max_count
        self._clock = clock
        self._values: OrderedDict[Hashable, tuple[float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        with self._lock:
            found = self._values.get(key)
            if found is None or self._clock() >= found[0]:
                self._values.pop(key, None)
                return None
            self._values.move_to_end(key)
            return found[1]

    def put(self, key: Hashable, value: T) -> None:
        if self._seconds <= 0:
            return
        with self._lock:
            self._values[key] = (self._clock() + self._seconds, value)
            self._values.move_to_end(key)
            while len(self._values) > self._max_count:
                self._values.popitem(last=False)
