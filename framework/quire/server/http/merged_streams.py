"""Several async streams, read as one."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield (stream index, item) as items come; closing it, or an error in one, stops all."""
    queue: asyncio.Queue[tuple[int, T] | _End] = asyncio.Queue(maxsize=2 * len(streams))
    tasks = [asyncio.create_task(_feed(queue, i, stream)) for i, stream in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
                continue
            num_running -= 1
            if item.error is not None:
                raise item.error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


async def _feed(
    queue: "asyncio.Queue[tuple[int, T] | _End]", index: int, stream: AsyncIterator[T]
) -> None:
    end = _End()
    try:
        async for item in stream:
            await queue.put((index, item))
    except Exception as error:  # noqa: BLE001 - it is raised again by the reader of the queue
        end = _End(error)
    await queue.put(end)
