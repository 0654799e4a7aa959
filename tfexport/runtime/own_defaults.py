"""A bundle's own decoding defaults under the options of a call.

A caller's option wins. A default that the caller's options make meaningless is left out, so that it
never contradicts them.
"""

from collections.abc import Mapping
from typing import Any

from tfexport.errors import BundleError, join_problems
from tfexport.runtime.option_checks import find_problems, is_whole
from tfexport.runtime.options import DEFAULTS, SPECS

_OF_BEAMS = ("early_stopping", "exhaustive", "renormalize_logits")
_OF_SAMPLING = ("temperature", "top_k", "top_p")
# Options of beams that the rules of transformers do not have.
_OF_OWN_RULES = ("patience", "coverage_penalty", "beam_groups", "diversity_penalty")
_OF_OTHER_RULES = ("exhaustive", "renormalize_logits")


def check_own(generation: Mapping[str, Any], name: str) -> None:
    """Check the defaults of a bundle, whose types the manifest's reader has checked.

    Args:
        generation: option to default.
        name: of the bundle, for messages.

    Raises:
        BundleError: naming every value out of bounds, and every contradiction.
    """
    problems = list(find_problems(with_own(generation, {}), SPECS))
    if problems:
        raise BundleError(join_problems(f"{name}: its decoding defaults", problems))


def with_own(generation: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, with a bundle's own defaults where nothing was given.

    Args:
        generation: option to default.
        given: options of the call, which may be invalid.
    """
    own = {name: value for name, value in generation.items() if name not in given}
    for drop in (_without_search, _without_rules, _without_settings, _without_length):
        for name in drop(own, given):
            own.pop(name, None)
    return {**own, **given}


def _value(name: str, own: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    return given.get(name, own.get(name, DEFAULTS[name]))


def _above_one(value: Any) -> bool:
    return is_whole(value) and value > 1


def _without_search(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """A beam or sampling of the bundle's, where the caller asks for what excludes it."""
    dropped = []
    if given.get("sampling") is True or given.get("callback") is not None:
        dropped.append("beam_size")
    if _above_one(given.get("beam_size")):
        dropped.append("sampling")
    return tuple(dropped)


def _without_rules(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules of transformers, where the caller asks for what they do not have."""
    if any(given.get(name, DEFAULTS[name]) != DEFAULTS[name] for name in _OF_OWN_RULES):
        return ("search_rules", "early_stopping", *_OF_OTHER_RULES)
    return _OF_OTHER_RULES if _value("search_rules", own, given) == "tfexport" else ()


def _without_settings(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings of beams without a beam, and of sampling without sampling."""
    beam, sampling = _value("beam_size", own, given), _value("sampling", own, given)
    dropped = [] if sampling is True else [*_OF_SAMPLING]
    if not _above_one(beam):
        dropped += _OF_BEAMS
    if given.get("early_stopping") is True:
        dropped.append("exhaustive")
    several = _value("num_hypotheses", own, given)
    found = is_whole(beam) and is_whole(several) and several <= beam
    if sampling is not True and given.get("return_alternatives") is not True and not found:
        dropped.append("num_hypotheses")
    return tuple(dropped)


def _without_length(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The bundle's limit that the caller's other limit passes."""
    least, most = _value("min_length", own, given), _value("max_length", own, given)
    if is_whole(least) and is_whole(most) and least > most:
        return ("min_length",) if "max_length" in given else ("max_length",)
    return ()
