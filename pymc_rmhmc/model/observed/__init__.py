"""Observed variables: how they read latent values, and their likelihoods as functions of sites."""
