"""Girolami and Calderhead (2011), section 7: five logistic regressions."""
