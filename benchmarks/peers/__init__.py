"""The samplers that are compared: functions ``(problem, seed, deadline, draws) -> Outcome``."""
