"""What a textbook teaches before the accountants: one Gaussian release, and the older composition theorems."""
