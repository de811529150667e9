"""Differential privacy: plans, accountants, calibration, sampling, noise, the statement.

A method lists its mechanisms, `calibration.calibrate` computes the noise that meets a target and
returns a `plan.Plan`, a head runs exactly that plan, and `statement.statement` prints it.

Noise is drawn in `noise.py` and added in `releases.py`, which counts every noisy release against
the plan. Two heads draw from `noise.py` directly, since their steps are compiled or one class at a
time, and report each release to `releases.py`: `heads/first_order.py` and `heads/descent.py`. The
engine `opacus` adds the noise of its own library.
"""
