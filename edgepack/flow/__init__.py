"""From a project file and a board to compiled models and bundles."""
