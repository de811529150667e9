"""Differential privacy: plans, accountants, noise calibration, sampling, noise, the statement.

A method lists its mechanisms, `noise_calibration.calibrate` computes the noise that meets a target
and returns a `plan.Plan`, a head runs exactly that plan, and `statement.Statement` prints it.

`releases.py` adds noise to sums, and counts every noisy release against the plan. Two fits take
float32 noise from `Releases.make_noise`, add it themselves and report each release: gradient heads
(`heads/gradient_steps.py`, with the compiled step in `heads/kernels/fused_step.py`) and fine-tuned
networks (`finetune/steps.py`).
"""
