"""One Gaussian release."""
