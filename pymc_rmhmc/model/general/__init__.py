"""Any model with a differentiable density: a chart of its continuous variables, read from the graph."""
