"""Differential privacy: plans, accountants, calibration, sampling, noise, the statement.

A method lists its mechanisms, `calibration.calibrate` finds the noise that meets a target and
returns a `plan.Plan`, a trainer runs exactly that plan, and `statement.statement` prints it.
"""
