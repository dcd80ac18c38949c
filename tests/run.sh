#!/bin/sh
# Sets everything up and runs all tests; arguments go to pytest.  VENV names another place than .venv.
# clang is what tinygrad's CPU device compiles with, which is the oracle of the training tests.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
.ci/prepare "$venv" fake,examples,test clang
exec "$venv/bin/pytest" "$@"
