"""The audit that supports a release's guarantee, if the study has one."""
