"""Girolami and Calderhead (2010, 2011): a log-Gaussian Cox process on a grid, its latent field and hyperparameters."""
