"""What all the others share: errors, checked tables, paths, child processes, progress."""
