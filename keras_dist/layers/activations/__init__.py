"""Activations with weights or arguments."""
