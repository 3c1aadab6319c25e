"""Base of layers: building, attributes, weights, calls."""
