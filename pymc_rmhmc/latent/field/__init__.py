"""The Gaussian field: latent values with a sparse precision, stated by residuals and predictors that are affine."""
