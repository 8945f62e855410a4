"""Girolami (2010), slides 15-16 and 47-51: HMC, Gibbs and RMHMC on a bivariate normal density."""
