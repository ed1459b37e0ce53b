"""The paper's tables and figures, and the benchmarks: run, kept, judged and drawn in one way."""
