"""The answer in sentences: paired over seeds, all else equal, no claim without evidence."""

from collections.abc import Callable

import pytest
from scipy import stats

from capsweep.report import answer

CNN = (0.03, 0.031, 0.034)
# Routing iterations 1 and 3, each without and with reconstruction.
CAPSNET = (
    (0.012, 0.014, 0.013),
    (0.010, 0.011, 0.010),
    (0.009, 0.010, 0.009),
    (0.007, 0.007, 0.005),
)


@pytest.fixture
def ablation(choose: Callable):
    """`make sweep`: a CNN, and two axes of two values."""
    return choose("ablation")


def test_an_axis_is_compared_with_all_else_equal_and_over_seeds(ablation) -> None:
    ablation.fill(*CNN, *sum(CAPSNET, ()))
    table = ablation.build()
    seeds = zip(*CAPSNET, strict=True)
    differences = [(c + d) / 2 - (a + b) / 2 for a, b, c, d in seeds]
    test = stats.ttest_1samp(differences, 0)
    iterations, weights = answer.list_comparisons(table)[:2]
    assert iterations.difference.mean == pytest.approx(sum(differences) / 3)
    assert iterations.difference.interval == pytest.approx(tuple(test.confidence_interval()))
    assert (iterations.settings, iterations.difference.n) == (2, 3)
    p_values = [each.difference.t_test for each in (iterations, weights)]
    assert min(iterations.p, weights.p) == pytest.approx(2 * min(p_values))  # Holm over two axes
    sentences = answer.list_sentences(table)
    assert sentences[0] == (
        "Routing iterations 3 against 1 with 3 seeds, if differences are normally distributed: "
        "-0.38 points [-0.57, -0.19] p 0.026, mean over 2 settings, lower test/error."
    )
    assert sentences[1].startswith("Reconstruction on against off with 3 seeds, if ")
    assert sentences[2].startswith(
        "Against cnn with 3 seeds, if differences are normally distributed: test/error is lower "
        "for capsnet · 1 · 0 (-1.87), capsnet · 1 · 0.0005 ("
    )
    assert len(sentences) == 3


def test_a_value_of_one_arm_alone_is_not_what_others_are_compared_with(choose: Callable) -> None:
    losses = ["loss=margin,spread"]
    chosen = choose("ablation", routing="3", recon="0", seeds="6", overrides=losses)
    changes = (0.001, 0.002, 0.001, 0.003, 0.002, 0.001)
    chosen.fill(*[0.03] * 6, *[0.02] * 6, *(0.02 + change for change in changes))
    first, *_ = answer.list_sentences(chosen.build())  # only the CNN has loss cross_entropy
    assert first.startswith("Loss spread against margin with 6 seeds: +0.17 points [")
    assert first.endswith(", higher test/error.")


def test_seeds_that_differ_in_sign_or_not_at_all_cannot_tell(ablation) -> None:
    ablation.fill(*CNN, *CNN, *CNN, 0.031, 0.03, 0.035, 0.031, 0.03, 0.035)
    iterations, weights, _ = answer.list_sentences(ablation.build())
    assert ", mean over 2 settings, cannot be told." in iterations
    assert "+0.00 points, mean over 2 settings, equal for all seeds, so that no" in weights


def test_rows_that_lack_seeds_are_in_no_mean_of_an_axis(ablation) -> None:
    ablation.fill(*CNN, *CAPSNET[0], *CAPSNET[1], *CAPSNET[2], 0.007)
    table = ablation.build()
    first, *_ = answer.list_comparisons(table)
    assert (first.settings, first.difference.mean) == (1, pytest.approx(-0.011 / 3))
    text = "; too few seeds for an interval: capsnet · 3 · 0.0005 (-2.30), in percentage "
    assert text in answer.list_sentences(table)[-1]


def test_what_supports_no_claim_has_no_sentence(choose: Callable) -> None:
    single, cut = choose("ablation", seeds="1"), choose("ablation", overrides=["limit_batches=2"])
    single.fill(0.1, 0.2)
    cut.fill(*CNN, *CNN)
    assert answer.list_sentences(single.build()) == [answer.ONE_SEED]
    assert answer.list_sentences(cut.build()) == []


def test_two_seeds_and_many_rows_claim_little_in_few_words(choose: Callable) -> None:
    chosen = choose("ablation", seeds="2", overrides=["epochs=1,2,3,4,5"])
    chosen.fill(*[0.01 + 0.0001 * number**2 for number in range(50)])
    sentences = answer.list_sentences(chosen.build())
    assert sentences[-2] == "Epochs against 1 with 2 seeds: differences cannot be told for 4 of 4."
    assert sentences[-1].endswith(" with 2 seeds: differences cannot be told for 24 of 24.")
    assert max(map(len, sentences)) < 300
    assert answer.shorten_sentences(["a"] * 9)[6:] == [
        "3 more sentences: on the page of the report."
    ]
