"""Makes the test front end importable by the engine's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
