"""The main job from end to end on one machine, with real parts: submitted, preempted twice, resumed, finished, billed."""
