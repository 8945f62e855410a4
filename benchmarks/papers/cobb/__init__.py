"""Cobb, Baydin, Markham and Roberts (2019): an explicit integrator for Riemannian manifold HMC."""
