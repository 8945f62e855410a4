"""The samplers that are compared: one file each, one function ``run(problem, seed, settings) -> Outcome``."""
