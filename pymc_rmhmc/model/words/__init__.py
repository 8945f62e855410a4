"""What a user is told of a model: its description, refusals, advice, and faults of data and arguments."""
