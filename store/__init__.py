"""The only SQL and the only Redis commands of the project."""
