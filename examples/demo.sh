#!/bin/sh
# Sets everything up in .venv and trains a small network through the device proxy, on the in-memory device.
set -eu
cd "$(dirname "$0")/.."
.ci/prepare .venv fake,examples
DEV=CUDA exec .venv/bin/singularity-run --backend fake examples/train_digits.py "$@"
