"""Recurrent layers, their cells and wrappers."""
