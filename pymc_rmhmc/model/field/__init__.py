"""Reading a Gaussian field from a model: residuals of its priors, and what is affine in its latent values."""
