"""`EmbedkitTransformer` in scikit-learn: its checks where they apply to text, pipelines, grid search."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

from embedkit import Encoder
from embedkit.integrations.sklearn import EmbedkitTransformer

TEXTS = [
    "The soup needs more salt.",
    "Boil the lentils for half an hour.",
    "Bake the bread until it is brown.",
    "Chop an onion and fry it in butter.",
    "A pinch of pepper improves the sauce.",
    "Whisk the eggs with sugar.",
    "The compiler reports a missing header.",
    "Restart the server after the update.",
    "The query runs out of memory.",
    "Merge the branch into main.",
    "A thread waits for the lock.",
    "The unit test fails on Windows.",
]
LABELS = [0] * 6 + [1] * 6

# The checks of check_estimator that need only the estimator itself. The others pass it numeric matrices,
# and scikit-learn skips them for every estimator of texts, including its own vectorizers.
APPLICABLE = [
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
]


def test_check_estimator() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)  # it warns that it has few checks for texts
        results = check_estimator(EmbedkitTransformer())
    assert [result["status"] for result in results].count("failed") == 0


@pytest.mark.parametrize("name", APPLICABLE)
def test_checks_that_need_no_matrix(name: str) -> None:
    getattr(estimator_checks, name)("EmbedkitTransformer", EmbedkitTransformer())


def test_vectors_are_the_encoders() -> None:
    transformer = EmbedkitTransformer(truncate_dim=64, normalize_embeddings=True)
    vectors = transformer.fit_transform(TEXTS)
    np.testing.assert_array_equal(
        vectors, Encoder().encode(TEXTS, truncate_dim=64, normalize_embeddings=True)
    )
    assert transformer.n_features_out_ == 64
    assert transformer.get_feature_names_out()[:2].tolist() == [
        "embedkittransformer0",
        "embedkittransformer1",
    ]
    assert transformer.transform([]).shape == (0, 64)


def test_a_pipeline_classifies_and_a_grid_search_chooses() -> None:
    pipeline = make_pipeline(EmbedkitTransformer(), LogisticRegression())
    search = GridSearchCV(
        pipeline,
        {
            "embedkittransformer__model": [None, Encoder()],
            "embedkittransformer__truncate_dim": [2, 128],
            "logisticregression__C": [10.0],
        },
        cv=3,
        error_score="raise",
    )
    search.fit(TEXTS, LABELS)
    assert search.best_params_["embedkittransformer__truncate_dim"] == 128
    assert search.predict(["Stir the rice.", "The build breaks on Linux."]).tolist() == [0, 1]
    restored = pickle.loads(pickle.dumps(search.best_estimator_))
    assert restored.predict(["Stir the rice.", "The build breaks on Linux."]).tolist() == [0, 1]


def test_columns_of_a_table() -> None:
    column = np.array(TEXTS, dtype=object)
    expected = Encoder().encode(TEXTS)
    for form in (column, column[:, None], tuple(TEXTS), np.array(TEXTS)):
        np.testing.assert_array_equal(EmbedkitTransformer().fit_transform(form), expected)
    table = np.stack([column, np.arange(12).astype(object)], axis=1)
    chosen = ColumnTransformer([("text", EmbedkitTransformer(), 0), ("number", "passthrough", [1])])
    np.testing.assert_allclose(np.asarray(chosen.fit_transform(table)[:, :-1], float), expected, atol=1e-6)


def test_a_data_frame_in_and_out() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: it makes the table")
    frame = pandas.DataFrame({"text": TEXTS}, index=range(5, 17))
    out = EmbedkitTransformer(truncate_dim=3).set_output(transform="pandas").fit_transform(frame)
    assert out.shape == (12, 3) and list(out.index) == list(frame.index)
    np.testing.assert_allclose(out.to_numpy(), Encoder().encode(TEXTS, truncate_dim=3))


def test_what_is_set_after_fit_counts_from_the_next_one_on() -> None:
    """The vectors became as wide as set_params said, beside the names of those of fit."""
    pytest.importorskip("pandas")
    transformer = EmbedkitTransformer(truncate_dim=16).set_output(transform="pandas").fit(TEXTS)
    before = transformer.transform(TEXTS)
    transformer.set_params(truncate_dim=8, normalize_embeddings=True, prompt="passage: ")
    assert transformer.transform(TEXTS).equals(before)
    assert list(before.columns) == list(transformer.get_feature_names_out())
    assert pickle.loads(pickle.dumps(transformer)).transform(TEXTS).equals(before)
    after = transformer.fit_transform(TEXTS)
    assert after.shape == (12, 8) and transformer.n_features_out_ == 8
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, rtol=1e-5)


def test_a_failed_fit_leaves_the_one_before() -> None:
    transformer = EmbedkitTransformer(truncate_dim=16).fit(TEXTS)
    before = transformer.transform(TEXTS)
    with pytest.raises(ValueError, match="truncate_dim=1000"):
        transformer.set_params(truncate_dim=1000, model=Encoder()).fit(TEXTS)
    np.testing.assert_array_equal(transformer.transform(TEXTS), before)


def test_clones_of_an_open_encoder_share_its_weights() -> None:
    encoder = Encoder()
    copy = clone(EmbedkitTransformer(encoder)).fit(TEXTS)
    assert copy.encoder_._engine is encoder._engine


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ("one text", "X is one text"),
        (["a", 3], r"X\[1\] is int"),
        (np.ones((2, 2)), r"X has the shape \(2, 2\)"),
    ],
)
def test_non_texts_are_refused(X: Any, message: str) -> None:
    transformer = EmbedkitTransformer().fit(["a"])
    for call in (EmbedkitTransformer().fit, transformer.transform):
        with pytest.raises(ValueError, match=message):
            call(X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (iter(TEXTS), r"X is an iterator.*pass list\(X\)"),
        ({"a": "one"}, "expected a list of texts as X, got dict: pass its values"),
        ({"a", "b"}, "got set: its order is not defined"),
        (None, "expected a list of texts as X, got NoneType"),
    ],
)
def test_what_cannot_be_read_twice_in_order_is_refused(X: Any, message: str) -> None:
    for call in (EmbedkitTransformer().fit_transform, EmbedkitTransformer().fit(["a"]).transform):
        with pytest.raises(TypeError, match=message):
            call(X)


def test_errors_of_parameters_come_with_fit() -> None:
    with pytest.raises(NotFittedError):
        EmbedkitTransformer().transform(["a"])
    with pytest.raises(ValueError, match="truncate_dim=1000"):
        EmbedkitTransformer(truncate_dim=1000).fit(["a"])
    with pytest.raises(ValueError, match="precision cannot be set here"):
        EmbedkitTransformer(Encoder(), precision="int8").fit(["a"])
