#!/bin/sh
# Install, check and time everything that runs on a GPU, in one call. Every step has a time limit: ten minutes in all,
# and up to four for the installation.
#
#     experiments/gpu.sh [FOLDER]
#
# Writes summary.txt (which steps passed, and the times), times.csv and a log of every step to FOLDER, by default
# gpu-results. With INSTALLED=1, nothing is installed: kronlearn, CuPy and pytest must be there already.
cd "$(dirname "$0")/.." || exit 1
out=${1:-gpu-results}
mkdir -p "$out"
: > "$out/summary.txt"
failed=0

# step NAME SECONDS COMMAND …: runs a command with a time limit in seconds.
step() {
    name=$1 limit=$2 begin=$(date +%s)
    shift 2
    timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1
    status=$?
    case $status in
        0) result=passed ;;
        124 | 137)
            result="not finished"
            # compute-sanitizer begins with one such line and prints at least one more for every error.
            [ "$(grep -c '^========= ' "$out/$name.log")" -eq 1 ] && result="no error so far" && status=0
            ;;
        *) result="failed ($status)" ;;
    esac
    [ $status -eq 0 ] || failed=1
    last=$(grep -v '^ *$' "$out/$name.log" | tail -n 1)
    echo "$name: $result in $(($(date +%s) - begin)) s. $last" | tee -a "$out/summary.txt"
}

# Without CuPy's memory pool, the sanitizer sees accesses beyond an array and reads of unwritten memory.
unpooled='import sys, cupy, pytest; cupy.cuda.set_allocator(None); sys.exit(pytest.main(sys.argv[1:]))'
# Tests with few samples that together run every kernel.
few='tests/test_cuda.py::test_codes_are_those_of_the_processor
    tests/test_cuda.py::test_weighted_codes_are_those_of_the_processor
    tests/test_cuda.py::test_sums_are_those_of_the_processor
    tests/test_cuda_updates.py tests/test_cuda_streaming.py tests/test_cuda_images.py tests/test_cuda_denoising.py'

sanitizer=$(command -v compute-sanitizer)
if [ -z "$INSTALLED" ]; then
    step install 240 python -m pip install '.[test,cuda13]' nvidia-cuda-sanitizer-api
    installed=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
    sanitizer=${sanitizer:-$installed/bin/compute-sanitizer}
fi
tests=$(grep -lE 'on_gpu|def test.*\(gpu' tests/test_*.py | grep -v random)
# shellcheck disable=SC2086
step tests 120 python -m pytest -q -m 'slow or not slow' -k '[cuda' $tests
step random 90 python -m pytest -q -n 4 --dist load -m slow -k '[cuda' tests/test_cuda_random.py
for tool in memcheck racecheck initcheck; do
    # shellcheck disable=SC2086
    step $tool 50 "${sanitizer:-compute-sanitizer}" --tool $tool --error-exitcode 9 \
        python -c "$unpooled" -q -x -n 0 -k '[cuda and not bands and not constant' $few
done
step times 220 kronlearn bench gpu --all --csv "$out/times.csv"
cat "$out/times.log" >> "$out/summary.txt"
exit $failed
