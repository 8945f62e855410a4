"""Filippone (2011), discussion of Girolami and Calderhead: latent values and hyperparameters of a GP classifier."""
