"""The doors to private parts of JAX, Flax, XLA, Shardy and Gloo, and to what differs between their versions.

No other package imports them.
"""
