"""What only an accelerator can say: `make accelerator`."""
