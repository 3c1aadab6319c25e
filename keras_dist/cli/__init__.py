"""The command line: `keras-dist`, or `python -m keras_dist`. Each command parses, calls one function and prints."""
