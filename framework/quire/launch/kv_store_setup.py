"""The outside KV store that was chosen: its code, and whether its options can work."""

from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import KVStoreScheduler
from quire.launch.composing import Composed


def load_store(composed: Composed) -> type[KVStoreScheduler] | None:
    """Return the scheduler's half of the store; None if there is to be none.

    Raises:
        PluginError: Its code cannot be loaded.
    """
    choice = composed.composition.kv_store
    return None if choice is None else composed.plugins.registries.kv_stores.load(choice.entry)


def check_store_options(composed: Composed, plan: KVPlan | None = None) -> None:
    """Check the options of the store, if there is one, before anything is loaded.

    Args:
        composed: What was chosen.
        plan: The memory of the cache; None: it is not known yet.

    Raises:
        PluginError: The store's code cannot be loaded.
        SettingsError: An option is unknown or cannot work.
    """
    store = load_store(composed)
    if store is not None:
        store.check_options(composed.settings.cache.store_options, plan)
