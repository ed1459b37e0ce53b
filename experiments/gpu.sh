#!/bin/sh
# Install, check and time everything that runs on a GPU, in one call: four minutes on an H200.
# The times go to gpu.csv, or to the file named.
cd "$(dirname "$0")/.." || exit 1
python -m pip install '.[test,cuda13]' || exit 1
python -m pytest -q -m "slow or not slow" -k "[cuda" tests/test_cuda*.py
checked=$?
kronlearn bench gpu --all --csv "${1:-experiments/gpu.csv}" && exit $checked
