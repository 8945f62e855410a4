"""Latent Gaussian vectors and their hyperparameters: coordinates, densities, trajectories with one half held."""
