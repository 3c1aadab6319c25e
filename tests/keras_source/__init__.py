"""Keras's own unit tests, run on keras_dist with nothing changed but the import. By hand, from a checkout::

    python -m tests.keras_source.unit_tests --source KERAS [--only layers/core losses]

Nothing of Keras's text is kept here. `names` reads from the checkout under which public name each definition of
`keras.src` is exported, `modules` serves modules of these names with what keras_dist exports, `stand_ins` what tests
use that is no part of Keras's interface, `rewriting` changes the imports and tells why a test cannot count.
"""
