#!/bin/sh
# Runs the library that notes files, linked into the programs that try it, under AddressSanitizer and
# UndefinedBehaviorSanitizer, then its threads under ThreadSanitizer.  Needs gcc, setarch, and a Python with the test
# requirements ($PYTHON, default python3).
set -eu
cd "$(dirname "$0")/../.."
for sanitizer in ${SANITIZERS:-address thread}; do
    echo "== $sanitizer"
    chosen=
    [ "$sanitizer" = thread ] && chosen="threads or busy"
    SINGULARITY_TEST_SANITIZER=$sanitizer "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider \
        tests/files/test_interposer.py -k "$chosen" "$@"
done
