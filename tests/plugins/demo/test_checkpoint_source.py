"""The name `demo` is the shipped checkpoint, with its adapters by folder name."""

from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from recipe.adapters import STYLES
from recipe.template import CHECKPOINT


def test_the_demo_is_the_folder_that_ships_and_all_of_its_adapters():
    own_only = PluginSettings(disable_plugin_autoload=True)
    demo = load_plugins(own_only).registries.checkpoints.get("demo")()
    assert demo.folder == CHECKPOINT
    assert (demo.folder / "config.json").is_file()
    assert demo.adapters == {style: CHECKPOINT.parent / "adapters" / style for style in STYLES}
