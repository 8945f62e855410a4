"""A test that writes its own models: random PyMC models, each checked against the joint law of parameters and data."""
