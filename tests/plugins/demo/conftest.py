"""Puts the folder of the recipe, which is not part of the wheel, on the path."""

from __future__ import annotations

import sys
from pathlib import Path

RECIPE_ROOT = Path(__file__).parents[3] / "plugins" / "demo"
sys.path.insert(0, str(RECIPE_ROOT))
