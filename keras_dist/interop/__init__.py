"""Objects and files of Keras itself. Keras is imported by who has it, never here."""
