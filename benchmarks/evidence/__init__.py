"""How exact the evidence is, and how long it takes, where it is known."""
