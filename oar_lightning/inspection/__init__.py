"""What credit looks like: the HTML heat-map, tables of token credit, scores of recorded completions."""
