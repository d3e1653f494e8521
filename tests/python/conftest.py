"""Modules that tests of several packages share."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("worker", "models"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
