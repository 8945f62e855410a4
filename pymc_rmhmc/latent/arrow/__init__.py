"""Coefficients whose design has columns without a row in common, in compiled code."""
