"""Hamiltonian dynamics: what a Hamiltonian, an integrator and a trajectory are, and how they are tuned.

Nothing here knows PyMC or a Gaussian process: a metric and a target come in through the protocols of
`pymc_rmhmc.dynamics.hamiltonian`.
"""
