#!/bin/sh
# Runs C programs as ranks, with client, proxy and in-memory device built under AddressSanitizer and
# UndefinedBehaviorSanitizer, then under ThreadSanitizer.  Needs gcc, setarch, and a Python with the test
# requirements ($PYTHON, default python3).
set -eu
cd "$(dirname "$0")/../.."
for sanitizer in ${SANITIZERS:-address thread}; do
    echo "== $sanitizer"
    SINGULARITY_TEST_SANITIZER=$sanitizer "${PYTHON:-python3}" -P -m pytest -q -p no:cacheprovider \
        tests/interposers/test_programs.py tests/interposers/test_handover.py "$@"
done
