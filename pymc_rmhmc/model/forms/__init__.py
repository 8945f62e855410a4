"""Forms of latent Gaussian priors: each as functions of a point, with their derivatives."""
