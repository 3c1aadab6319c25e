"""Private parts of JAX, Flax, XLA, Shardy and Gloo, calls that differ between versions, and work-arounds of defects.

No other package imports them. Defects were seen with jax 0.10.2 and 0.12.0, and flax 0.12.8 and 0.12.12.
`tests/contracts/test_unstable.py` fails when one of them is gone.
"""
