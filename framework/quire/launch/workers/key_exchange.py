"""Keys and values that the ranks exchange through the engine, in order to find each other."""

from quire.errors import EngineDeadError
from quire.launch.workers.worker_wire import GetKey, KeyValue, SetKey
from quire.process.hub import HubChannel


class KeyExchange:
    """Exchange of one rank; used while the engine waits for this rank to load, or to resume.

    Args:
        channel: Channel to the engine.
    """

    def __init__(self, channel: HubChannel) -> None:
        self._channel = channel

    def set(self, key: str, value: bytes) -> None:
        """Publish a value for the other ranks."""
        self._channel.send(SetKey(key, value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait until a rank has published a value, and return it.

        Raises:
            TimeoutError: No rank has published it in time.
            EngineDeadError: The engine sent another message.
        """
        self._channel.send(GetKey(key))
        message = self._channel.receive(timeout_s)
        if message is None:
            raise TimeoutError(f"no rank has published {key!r} within {timeout_s:g} s")
        if not isinstance(message, KeyValue) or message.key != key:
            raise EngineDeadError(f"the engine sent {message!r}, and not the value of {key!r}")
        return message.value
