"""Kinds of density that a chain can be given: blocks, the graph, a whole model, a process; each with its density."""
