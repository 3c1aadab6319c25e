"""Pages of the reference that a script writes: names, commands, config files and errors from the package itself."""
