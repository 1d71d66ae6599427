"""Set-up of the external KV store: import of its code, and check of its options."""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import KVStoreScheduler, cross_group_block_bytes
from quire.launch.composing import Composed


def load_store(composed: Composed) -> type[KVStoreScheduler] | None:
    """Return the class of the store's scheduler side; None if no store is chosen.

    Raises:
        PluginError: The store's code cannot be loaded.
    """
    choice = composed.composition.kv_store
    return None if choice is None else composed.plugins.registries.kv_stores.load(choice.entry)


def store_plan(plans: Sequence[KVPlan]) -> KVPlan:
    """Return the plan for the scheduler side of a store, of those of the pipeline stages.

    It is that of the longest cross-group block: the store has room for the fewest of these, and
    every other rank has room for as many.
    """
    return max(plans, key=cross_group_block_bytes)


def check_store_options(composed: Composed, plan: KVPlan | None = None) -> None:
    """Check the options of the store, if one is chosen, before anything is loaded.

    Args:
        composed: Composition of the engine, with its settings.
        plan: Plan of the KV cache; None: it is not known yet.

    Raises:
        PluginError: The store's code cannot be loaded.
        SettingsError: An option is unknown or invalid.
    """
    store = load_store(composed)
    if store is not None:
        store.check_options(composed.settings.cache.store_options, plan)
