"""Results side by side, and what went wrong in them."""
