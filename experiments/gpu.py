"""Check and time everything that runs on a GPU, in one call; three minutes on an H200.

    python experiments/gpu.py [FILE.csv]

Runs the tests that need a GPU, then ``kronlearn bench gpu --all``; the rows go to gpu.csv beside
this script unless another file is named. Needs a checkout, ``pip install '.[test,cuda]'``, a GPU.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Run both; 0 if all tests pass."""
    csv = arguments[0] if arguments else str(HERE / "gpu.csv")
    tests = sorted(map(str, (HERE.parent / "tests").glob("test_cuda*.py")))
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", "-k", "[cuda"]
    code = subprocess.run([*pytest, *tests], check=False).returncode
    bench = "from kronlearn.cli.app import main; main()"
    times = [sys.executable, "-c", bench, "bench", "gpu", "--all", "--csv", csv]
    return subprocess.run(times, check=False).returncode or code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
