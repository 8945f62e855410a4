"""Lalchand (2019), slides on Gaussian processes and Hamiltonian Monte Carlo."""
