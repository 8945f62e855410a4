"""Riemannian metrics. One file a metric; a new one needs no edit elsewhere but its name below.

What a chain does with a metric beyond its matrix is in `pymc_rmhmc.sampled.metric_choice`.
"""

from pymc_rmhmc.metrics.dense_metric import DenseField, DenseMatrix
from pymc_rmhmc.metrics.field import MetricFieldBase
from pymc_rmhmc.metrics.flat import FlatField, FlatMetric
from pymc_rmhmc.metrics.graph_metric import GraphMetric, MatrixField
from pymc_rmhmc.metrics.latent_metric import (
    CurvatureMetric,
    FisherMetric,
    HessianMetric,
    LatentField,
    LatentMatrix,
    LatentPoint,
    SoftAbsCurvatureMetric,
)
from pymc_rmhmc.metrics.processes.block import BlockField, BlockMetric
from pymc_rmhmc.metrics.processes.whitened import WhitenedField, WhitenedFisherMetric
from pymc_rmhmc.metrics.softabs_metric import SoftAbsField, SoftAbsMetric

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
