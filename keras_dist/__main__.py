"""`python -m keras_dist`: what the script `keras-dist` does."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which commands add that load a program

from keras_dist.cli.app import main

if __name__ == "__main__":
    main()
