"""The evidence log p(y): bridges from a normal approximation to the posterior, annealing, tempering."""
