"""Runs kernel cases in one process and writes one JSON line per case: {"case", "error"}.

    run_cases.py RESULTS [CASE ...]

A case that starts writes its name first, so that the reader knows which one a crash belongs to.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import all_cases
import driver


def main() -> None:
    results, wanted = sys.argv[1], sys.argv[2:] or list(all_cases.CASES)
    with open(results, "a", encoding="utf-8", buffering=1) as output:
        device = driver.Device()
        for name in wanted:
            output.write(json.dumps({"case": name, "started": True}) + "\n")
            error, broken = None, False
            try:
                all_cases.CASES[name](device)
            except Exception as problem:  # reported to the reader, which fails the test
                error = "".join(traceback.format_exception(problem)[-12:])
                broken = isinstance(problem, driver.DriverError)
            output.write(json.dumps({"case": name, "error": error}) + "\n")
            if broken:
                break  # the error may be sticky; the reader starts another rank for the rest


if __name__ == "__main__":
    main()
