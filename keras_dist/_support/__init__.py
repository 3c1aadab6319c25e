"""Shared by every package: checks of arguments, tree paths, patterns, text tables, lendable variables."""
