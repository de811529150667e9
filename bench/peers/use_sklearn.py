"""scikit-learn's logistic regression without privacy, for comparison."""

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from peers import Fit, Predict


def train(fit: Fit) -> Predict:
    head = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    return head.fit(fit.X, fit.y).predict
