"""What ``tfexport.export`` shows of itself."""

import pytest

from tfexport import export


def test_every_public_name_is_listed_and_found() -> None:
    assert set(export.__all__) <= set(dir(export))
    assert all(getattr(export, name) is not None for name in export.__all__)
    listed = {name for names in export._WHERE.values() for name in names}
    assert listed == set(export.__all__)


@pytest.mark.parametrize("name", ["GraphResult", "TorchResult"])
def test_old_names_of_results_work_and_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{name} is now called ExportResult"):
        assert getattr(export, name) is export.ExportResult
