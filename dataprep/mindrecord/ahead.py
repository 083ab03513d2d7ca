"""Work that a pool of threads does before its results are asked for."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def map_ahead(work: Callable[[S], T], inputs: Iterable[S], threads: int) -> Iterator[T]:
    """map(work, inputs) in a pool, `threads` results ahead of the one that is used."""
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, "ahead") as pool:
        try:
            for item in inputs:
                waiting.append(pool.submit(work, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # also when the caller has had enough
            for future in waiting:
                future.cancel()
