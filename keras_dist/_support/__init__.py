"""What every package may use: checks of arguments, paths, patterns, tables of text, variables that are lent."""
