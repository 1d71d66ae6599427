"""The recipe is no part of the wheel, so its folder is put on the path here."""

from __future__ import annotations

import sys
from pathlib import Path

RECIPE_ROOT = Path(__file__).parents[3] / "plugins" / "demo"
sys.path.insert(0, str(RECIPE_ROOT))
