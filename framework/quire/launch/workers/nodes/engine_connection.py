"""Connection of an agent to its engine, with the key that is in its file when the engine listens.

An agent may read the file before the engine has written its key, when it still has the key of an
engine that was killed. So an agent that is refused reads the file again.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.process.hub import HubChannel
from quire.process.launch_key import ONE_START, STANDARD_INPUT, LaunchKey, present_text
from quire.process.network.network_channel import KeyRefusedError, NetworkChannel

RETRY_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConnection:
    """Connection to an engine.

    Attributes:
        channel: Channel to the engine, which has admitted this end.
        key: Key of the launch.
        own_ip: IP address by which this machine reaches the engine.
    """

    channel: HubChannel
    key: LaunchKey
    own_ip: str


def connect(kind: Any, engine: str, key_file: str, timeout_s: float) -> EngineConnection:
    """Connect to an engine, waiting for the file of its key and for the engine.

    Args:
        kind: Type of messages from the engine.
        engine: Address at which the engine listens.
        key_file: File of the key; `-` is standard input.
        timeout_s: Time for all of it.

    Raises:
        SettingsError: There is no key in time, or the engine has another one.
        QuireError: The engine cannot be reached in time.
    """
    deadline = time.monotonic() + timeout_s
    key = LaunchKey.read(key_file, timeout_s)
    while True:
        channel = NetworkChannel(kind, engine, key)
        try:
            own_ip = channel.connect(max(0.0, deadline - time.monotonic()))
            return EngineConnection(channel, key, own_ip)
        except KeyRefusedError as refusal:
            channel.close()
            key = _other_key(key_file, key, refusal, deadline)
        except BaseException:
            channel.close()
            raise


def _other_key(
    file: str, refused: LaunchKey, refusal: KeyRefusedError, deadline: float
) -> LaunchKey:
    """Return the key that takes the place of a refused one, once it is in the file.

    Raises:
        KeyRefusedError: None is written in time, or none can be expected.
    """
    if file == STANDARD_INPUT:
        raise refusal
    logger.warning("the engine refuses the key in %s; it may be of an earlier start", file)
    while time.monotonic() < deadline:
        text = present_text(Path(file)) or ONE_START  # one that is absent or empty will be written
        digits, is_for_one_start, _ = text.partition(ONE_START)
        if digits and (key := LaunchKey.from_text(digits, f"the content of {file}")) != refused:
            return key
        if not is_for_one_start:
            break
        time.sleep(RETRY_S)
    raise refusal
