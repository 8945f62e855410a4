"""Hamiltonian dynamics: what a Hamiltonian and an integrator are.

Nothing here knows PyMC or a Gaussian process: a metric and a target come in through the protocols of
`pymc_rmhmc.dynamics.hamiltonian`.
"""
