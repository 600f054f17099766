"""What could not run on a board is refused before anything is copied."""
