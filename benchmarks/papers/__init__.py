"""Published experiments of Riemannian manifold HMC, measured again with this package."""
