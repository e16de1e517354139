"""Pages made from results: self-contained, they work offline."""
