#!/usr/bin/env python3
"""The test modules of a package, as many at once as there are cores: they mostly wait.

    tools/modules.py tests/integration"""

import sys
from pathlib import Path

from together import run_all

# Begun first, so that none of them is what all others have to be waited for.
LONG = ("test_http_framing", "test_auth", "test_pressure", "test_calls", "test_server_life", "test_tls", "test_operations")


def main():
    folder = Path(sys.argv[1])
    names = sorted((p.stem for p in folder.glob("test_*.py")), key=lambda name: LONG.index(name) if name in LONG else len(LONG))
    parts = [(name, [sys.executable, "-m", "unittest", "-q", ".".join((*folder.parts, name))], {}) for name in names]
    run_all(parts, "modules", "tests", r"^Ran (\d+) tests?")


main()
