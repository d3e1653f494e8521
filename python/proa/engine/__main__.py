"""`python -m proa.engine --config-fd N`: read the configuration document from a descriptor and serve."""

from __future__ import annotations

import argparse
import os
import sys

# numpy's threads would compete with the executor's.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _read_config() -> str:
    parser = argparse.ArgumentParser(prog="proa engine", description=__doc__)
    parser.add_argument("--config-fd", type=int, required=True, help="descriptor of the configuration document")
    descriptor = parser.parse_args().config_fd
    with os.fdopen(descriptor, encoding="utf-8") as document:
        return document.read()


if __name__ == "__main__":
    text = _read_config()
    from proa.engine.bootstrap import main

    sys.exit(main(text))
