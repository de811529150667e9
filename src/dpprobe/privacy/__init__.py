"""Differential privacy: plans, accountants, calibration, sampling, noise, the statement.

A method lists its mechanisms, `calibration.calibrate` computes the noise that meets a target and
returns a `plan.Plan`, a head runs exactly that plan, and `statement.Statement` prints it.

Noise is drawn in `gradient_noise.py` and added in `releases.py`, which counts every noisy release
against the plan. Two fits take noise from `Releases.make_noise`, add it themselves and report each
release: the gradient heads (`heads/gradient_steps.py`, and the compiled step in
`heads/kernels/fused_step.py`), and Newton's with one Hessian per class.
"""
