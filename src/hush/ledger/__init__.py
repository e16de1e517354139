"""What all runs together have spent on a dataset, in a file that is written ahead of every release. No torch."""
