"""The paper's tables and figures, and the benchmarks."""
