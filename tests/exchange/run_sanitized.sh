#!/bin/sh
# Runs the exchange's threads with the C program built under AddressSanitizer and UndefinedBehaviorSanitizer, then under
# ThreadSanitizer.  Needs gcc, setarch, and a Python with this project and the test requirements ($PYTHON, default python3).
set -eu
cd "$(dirname "$0")/../.."
for sanitizer in address thread; do
    echo "== $sanitizer"
    SINGULARITY_TEST_SANITIZER=$sanitizer "${PYTHON:-python3}" -P -m pytest -q -p no:cacheprovider tests/exchange/test_threads.py "$@"
done
