import inspect

from packaging.version import Version

import tfexport
from tfexport import errors
from tfexport.cli.spelling import spell
from tfexport.errors import (
    ConfigError,
    Message,
    Option,
    OutputExistsError,
    Problem,
    TfexportError,
    join_problems,
)


def all_errors() -> list[type[TfexportError]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value)
        and issubclass(value, TfexportError)
        and value is not TfexportError
    ]


def test_every_error_derives_from_a_builtin_and_stands_in_the_tree() -> None:
    assert len(all_errors()) >= 9
    for error in all_errors():
        first = error if TfexportError in error.__bases__ else error.__mro__[1]  # a kind of it
        assert TfexportError in first.__bases__
        builtin = first.__mro__[2]
        assert builtin.__module__ == "builtins"
        assert f"{error.__name__} " in (errors.__doc__ or "")
        assert f"({builtin.__name__})" in (errors.__doc__ or "")


def test_one_problem_stays_on_its_line_and_several_get_one_each() -> None:
    assert str(join_problems("a", ["b"])) == "a: b"
    assert str(join_problems("a", ["b"], "Do c.")) == "a: b. Do c."
    assert str(join_problems("a", ["b", "c"], "Do d.")) == "a: 2 problems:\n  - b\n  - c\nDo d."


def test_every_front_end_spells_options_its_own_way() -> None:
    problems = [Problem("beam_size", "0 is less than 1"), Problem(None, "too much")]
    remedy = Message("Say ", Option("settings", ["unk_id=3"]), " or ", Option("force", True), ".")
    error = ConfigError(join_problems("options", problems, remedy))
    assert str(error) == (
        "options: 2 problems:\n  - beam_size: 0 is less than 1\n  - too much\n"
        "Say settings=['unk_id=3'] or force=True."
    )
    assert error.message.spelled(spell) == (
        "options: 2 problems:\n  - --beam-size: 0 is less than 1\n  - too much\n"
        "Say --set unk_id=3 or --force."
    )
    assert str(OutputExistsError(Message(Option("layout", "annotated")))) == "layout='annotated'"
    assert spell(Option("layout", "annotated")) == "--format annotated"
    assert spell(Option("early_stopping", False)) == "--no-early-stopping"


def test_version_is_a_version() -> None:
    found = Version(tfexport.__version__)  # raises if it is none; of a tag, or before the next one
    assert found >= Version("0.1.0.dev0")
    assert found.local is None
