"""The `proa` command that pip installs: hands the arguments to Rust and knows nothing else.

Imports only the extension module, so that the command starts in milliseconds and the front end's process never holds
torch, numpy or transformers.
"""

from __future__ import annotations

import sys

from proa import _rust


def main() -> int:
    """Run the command line and return its exit code: 0 done, 2 refused, 70 the engine died too often."""
    code: int = _rust.main(sys.argv[1:], sys.executable)
    return code


if __name__ == "__main__":
    sys.exit(main())
