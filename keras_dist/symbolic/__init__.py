"""Symbolic tensors, the calls between them, and tracing of their shapes."""
