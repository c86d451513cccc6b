"""What every room may need: config check, random seeds, paths, locks, JSON lines, Markdown tables."""
