"""Layers that other layers are made of: dense and embedding layers, inputs, wrappers, modules of Flax."""
