"""Riemannian metrics. One file a metric; a new one needs no edit elsewhere but its name below.

What a chain does with a metric beyond its matrix is in `pymc_rmhmc.steps.metric_choice`.
"""

from pymc_rmhmc.geometry.metrics.block import BlockField, BlockMetric
from pymc_rmhmc.geometry.metrics.dense import DenseField, DenseMatrix
from pymc_rmhmc.geometry.metrics.field import MetricFieldBase
from pymc_rmhmc.geometry.metrics.flat import FlatField, FlatMetric
from pymc_rmhmc.geometry.metrics.graph import GraphMetric, MatrixField
from pymc_rmhmc.geometry.metrics.latent import (
    CurvatureMetric,
    FisherMetric,
    HessianMetric,
    LatentField,
    LatentMatrix,
    LatentPoint,
    SoftAbsCurvatureMetric,
)
from pymc_rmhmc.geometry.metrics.softabs_metric import SoftAbsField, SoftAbsMetric
from pymc_rmhmc.geometry.metrics.whitened import WhitenedField, WhitenedFisherMetric

__all__ = [
    "METRICS",
    "BlockField",
    "BlockMetric",
    "CurvatureMetric",
    "DenseField",
    "DenseMatrix",
    "FisherMetric",
    "FlatField",
    "FlatMetric",
    "GraphMetric",
    "HessianMetric",
    "LatentField",
    "LatentMatrix",
    "LatentPoint",
    "MatrixField",
    "MetricFieldBase",
    "SoftAbsCurvatureMetric",
    "SoftAbsField",
    "SoftAbsMetric",
    "WhitenedField",
    "WhitenedFisherMetric",
]

# What a string names. "auto" is the step's business: it depends on the model.
METRICS = {
    metric.name: metric
    for metric in (
        FlatMetric, HessianMetric, FisherMetric, SoftAbsMetric, SoftAbsCurvatureMetric, BlockMetric,
        WhitenedFisherMetric,
    )
}
