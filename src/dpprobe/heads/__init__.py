"""Heads: linear classifiers trained on stored features, privately or not.

One module a head, named in `dpprobe.heads.registry.HEADS`: its `Options` say what a study may write
and what is released, its `fit` trains. `dpprobe.heads.fit` trains any head, `scoring` applies it.
"""
