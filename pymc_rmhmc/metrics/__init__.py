"""Riemannian metrics. One file a metric; a new one needs no edit elsewhere but its name below.

What a chain does with a metric beyond its matrix is in `pymc_rmhmc.sampled.choices`.
"""

from pymc_rmhmc.metrics.field import DenseField, DenseMatrix, MetricFieldBase
from pymc_rmhmc.metrics.flat import FlatMetric
from pymc_rmhmc.metrics.graph_metric import GraphMetric
from pymc_rmhmc.metrics.latent_metric import (
    CurvatureMetric,
    FisherMetric,
    HessianMetric,
    LatentField,
    LatentPoint,
    SoftAbsCurvatureMetric,
)
from pymc_rmhmc.metrics.processes.block import BlockMetric
from pymc_rmhmc.metrics.processes.whitened import WhitenedFisherMetric
from pymc_rmhmc.metrics.softabs_metric import SoftAbsMetric

__all__ = [
    "METRICS", "BlockMetric", "CurvatureMetric", "DenseField", "DenseMatrix", "FisherMetric", "FlatMetric",
    "GraphMetric", "HessianMetric", "LatentField", "LatentPoint", "MetricFieldBase", "SoftAbsCurvatureMetric",
    "SoftAbsMetric", "WhitenedFisherMetric",
]  # fmt: skip

# What a string names. "auto" is the step's business: it depends on the model.
METRICS = {
    metric.name: metric
    for metric in (
        FlatMetric, HessianMetric, FisherMetric, SoftAbsMetric, SoftAbsCurvatureMetric, BlockMetric,
        WhitenedFisherMetric,
    )
}
