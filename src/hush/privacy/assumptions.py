"""What a guarantee may rest on that no proof can show, in the words in which it is listed."""

from __future__ import annotations

SECRET_SEED = "the secret seed that was chosen for sampling and noise stays secret and is used for no other run"
SECRET_GIVEN = "the secret that was handed in for sampling and noise stays secret and is used for no other run"
ROUNDING = "rounding that varies with the size of a batch gives nothing away"
FIXED = "the number of steps was decided without looking at what had been released"
BLINDLY = "nobody decided where to break off and what to change by looking at what had been released"
HOOKED = "the hooks on the model keep nothing of what they see that training or a release would use"
KEPT = "a {} of one's own ({}) keeps what it declares"
TRAINED = "the run that trained this model before did not use these data"
