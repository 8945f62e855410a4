"""Riemannian metrics. One file a metric; a new one needs no edit elsewhere but its name below."""

from pymc_rmhmc.geometry.metrics.flat import FlatMetric
from pymc_rmhmc.geometry.metrics.latent import (
    FisherMetric,
    HessianMetric,
    LatentMetric,
    LatentPoint,
    SoftAbsCurvatureMetric,
)

__all__ = [
    "METRICS",
    "FisherMetric",
    "FlatMetric",
    "HessianMetric",
    "LatentMetric",
    "LatentPoint",
    "SoftAbsCurvatureMetric",
]

# What a string names. "auto" is the step's business: it depends on the model.
METRICS = {
    metric.name: metric for metric in (FlatMetric, HessianMetric, FisherMetric, SoftAbsCurvatureMetric)
}
