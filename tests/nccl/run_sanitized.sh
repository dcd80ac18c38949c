#!/bin/sh
# Runs the NCCL client's cases under AddressSanitizer and UndefinedBehaviorSanitizer, then under ThreadSanitizer.
# Needs gcc, setarch, and a Python with the test requirements ($PYTHON, default python3).
set -eu
cd "$(dirname "$0")/../.."
for sanitizer in address thread; do
    echo "== $sanitizer"
    SINGULARITY_TEST_SANITIZER=$sanitizer "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider tests/nccl/test_client.py "$@"
done
