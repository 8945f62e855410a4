"""Each form of a prior at one θ: latent values as a function of standard normal noise."""
