"""What ``tfexport.export`` shows of itself."""

from tfexport import export


def test_every_public_name_is_listed_and_found() -> None:
    assert set(export.__all__) <= set(dir(export))
    assert all(getattr(export, name) is not None for name in export.__all__)
    listed = {name for names in export._WHERE.values() for name in names}
    assert listed == set(export.__all__)
