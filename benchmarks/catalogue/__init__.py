"""Models as people write them, sampled by RMHMC and by nutpie; run with ``python -m benchmarks.catalogue``."""
