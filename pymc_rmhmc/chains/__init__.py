"""One chain: a kernel, the adapters that tune it, its state, and a watch on whether it moves."""
