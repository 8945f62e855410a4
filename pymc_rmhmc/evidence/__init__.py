"""The evidence log p(y) and approximations of posteriors: public functions, and how models are read for them."""
