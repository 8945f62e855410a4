"""Riemannian metrics. One file a metric; a new one needs no edit elsewhere but its name below."""

from pymc_rmhmc.geometry.metrics.dense import DenseField, DenseMatrix
from pymc_rmhmc.geometry.metrics.field import MetricFieldBase
from pymc_rmhmc.geometry.metrics.flat import FlatField, FlatMetric
from pymc_rmhmc.geometry.metrics.latent import (
    FisherMetric,
    HessianMetric,
    LatentField,
    LatentMatrix,
    LatentPoint,
    SoftAbsCurvatureMetric,
)

__all__ = [
    "METRICS",
    "DenseField",
    "DenseMatrix",
    "FisherMetric",
    "FlatField",
    "FlatMetric",
    "HessianMetric",
    "LatentField",
    "LatentMatrix",
    "LatentPoint",
    "MetricFieldBase",
    "SoftAbsCurvatureMetric",
]

# What a string names. "auto" is the step's business: it depends on the model.
METRICS = {
    metric.name: metric for metric in (FlatMetric, HessianMetric, FisherMetric, SoftAbsCurvatureMetric)
}
