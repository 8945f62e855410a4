"""Coordinates and metrics of a latent Gaussian model.

Everything is brought to one form: standard normal coordinates z, sites ``η = η₀ + Φ z``, and a
log density that factorises over the sites. `prior` builds it from the model's prior, `charts` change z,
`target` holds the log density, and `metrics` the geometries on it.
"""
