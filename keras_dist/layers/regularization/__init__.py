"""Dropout, noise and activity regularization."""
