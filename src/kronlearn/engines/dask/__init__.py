"""The engine that runs passes on the workers of a Dask cluster.

Everything goes through Dask's public interface: a pass over a partition of the samples is a task,
and tasks add the sums. Tasks are pure, so what a lost worker held is computed again elsewhere by
Dask itself. Only samples that this process scattered cannot be computed again; the engine scatters
them anew and repeats the pass.

``partitions`` cuts the samples into parts that workers hold, ``tasks`` is what workers run, and
``engine`` puts passes together from both.
"""

from kronlearn.engines.dask.client import check_versions
from kronlearn.engines.dask.engine import Cluster

__all__ = ["Cluster", "check_versions"]
