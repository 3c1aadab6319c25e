"""Symbolic tensors: the shape and element type of arrays that a model will compute, and the calls between them."""
