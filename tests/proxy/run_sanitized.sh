#!/bin/sh
# Runs the proxy's tests with the C programs built under AddressSanitizer and UndefinedBehaviorSanitizer, then
# under ThreadSanitizer.  Needs gcc, setarch, and a Python with the test requirements ($PYTHON, default python3).
set -eu
cd "$(dirname "$0")/../.."
for sanitizer in address thread; do
    echo "== $sanitizer"
    SINGULARITY_TEST_SANITIZER=$sanitizer SINGULARITY_TEST_FUZZ_MESSAGES=${SINGULARITY_TEST_FUZZ_MESSAGES:-200000} \
        "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider tests/proxy/test_sessions.py tests/proxy/test_doors.py \
        tests/proxy/test_fuzz.py tests/proxy/test_residency.py "$@"
done
