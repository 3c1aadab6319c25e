"""`python -m keras_dist`: what the script `keras-dist` does."""

from keras_dist.cli.app import main

if __name__ == "__main__":
    main()
