"""Predicts accuracy from the number of images and the budget, by public learning curves."""
