"""Questions that are asked of PyTensor graphs: reach, affinity, linear maps, scales, source code."""
