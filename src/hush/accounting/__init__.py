"""What a release costs in privacy: events, accountants, calibration, and the guarantee in words. No torch in here."""
