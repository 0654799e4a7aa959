"""Type hints of all public names: tools that read them find every type."""

import inspect
from typing import get_type_hints

import pytest

import tfexport
from tfexport import export, model_src, runtime

PUBLIC = [
    pytest.param(getattr(package, name), id=f"{package.__name__}.{name}")
    for package in (export, model_src, runtime)
    for name in package.__all__
]


@pytest.mark.parametrize("value", PUBLIC)
def test_types_are_found(value: object) -> None:
    methods = [value]
    if inspect.isclass(value):
        methods += [method for _, method in inspect.getmembers(value, inspect.isfunction)]
    for method in methods:
        get_type_hints(method)


def test_the_translator_is_a_name_of_the_package() -> None:
    assert tfexport.Translator is runtime.Translator
    assert "Translator" in dir(tfexport)
