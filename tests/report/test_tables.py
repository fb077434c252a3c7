from rac_jax.report import tables


def test_accuracies_in_per_cent_with_a_dash_for_a_group_without_classes():
    branches = {"rac": {"all": 0.5, "many": 1.0, "medium": 0.25, "top5": 0.875}, "base": {"all": 0.0, "top5": 0.12345}}
    assert tables.accuracy_table(branches).splitlines() == [
        "voice            all     many   medium      few     top5",
        "rac            50.00   100.00    25.00        –    87.50",
        "base            0.00        –        –        –    12.35",
    ]
