"""Girolami (2010), slides 17-20 and 52-55: stochastic volatility by Metropolis, HMC and RMHMC."""
