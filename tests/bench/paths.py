"""Puts the package and the tests' helpers on the import path; each script here imports it first."""
from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
TESTS = BENCH.parent
ROOT = TESTS.parent

for _folder in (TESTS, ROOT):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
