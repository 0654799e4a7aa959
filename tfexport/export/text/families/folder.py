"""The files of a tokenizer in a Hugging Face folder, and the settings next to them.

Source of the rules: how transformers reads tokenizer_config.json, special_tokens_map.json and
added_tokens.json; the two last are read where the first does not list the added tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfexport.errors import TokenizerError, shown
from tfexport.runtime.text.piece_tokenizer import read_json

NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # in the order of transformers
_MOST_TOKENS = 100_000


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a config.json and perhaps files of a tokenizer.

    Attributes:
        path: the path of the folder.
        config: the values of its config.json.
        by_model: whether its SentencePiece model splits text, with all of its rules, and not the
            tokenizer that transformers makes of its pieces.
    """

    path: Path
    config: Mapping[str, Any]
    by_model: bool = False

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def need(self, *names: str) -> None:
        """Require files.

        Raises:
            TokenizerError: files are missing; all are listed.
        """
        missing = [name for name in names if not self.has(name)]
        if missing:
            raise TokenizerError(
                f"{self.path}: {' and '.join(missing)} of the tokenizer "
                f"{'are' if len(missing) > 1 else 'is'} missing; its files are {', '.join(names)}."
            )

    def read(self, name: str) -> Any:
        """Read a JSON file.

        Raises:
            TokenizerError: it is unreadable.
        """
        return read_json(self.path / name, "JSON")

    def read_object(self, name: str) -> dict[str, Any]:
        """Read the object of a JSON file; empty if there is no such file.

        Raises:
            TokenizerError: it is unreadable, or not an object.
        """
        values = self.read(name) if self.has(name) else {}
        if not isinstance(values, dict):
            raise TokenizerError(f"{self.path / name}: {shown(values)} is not an object.")
        return values

    def read_vocabulary(self, name: str, whole: bool = True) -> dict[str, int]:
        """Read an object from pieces to ids.

        Args:
            name: the name of the file.
            whole: whether the ids must be 0, 1, 2, … without gaps.

        Raises:
            TokenizerError: the file has other content.
        """
        values = self.read_object(name)
        wrong = [key for key, value in values.items() if type(value) is not int or value < 0]
        if wrong:
            found = shown(values[wrong[0]])
            raise TokenizerError(f"{self.path / name}: {wrong[0]!r} has {found}, not an id.")
        ids = sorted(values.values())
        if (whole and ids != [*range(len(ids))]) or not ids:
            place = next((i for i, found in enumerate(ids) if i != found), len(ids))
            raise TokenizerError(
                f"{self.path / name}: {len(ids)} pieces must have the ids from 0 to "
                f"{len(ids) - 1}, each one; id {place} has none or several."
            )
        return values

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The values of tokenizer_config.json and, in older folders, special_tokens_map.json.

        Raises:
            TokenizerError: a file is unreadable, or asks for what is not supported.
        """
        values = self.read_object("tokenizer_config.json")
        if "added_tokens_decoder" not in values:
            values |= self.read_object("special_tokens_map.json")
        for key in ("split_special_tokens", "sp_model_kwargs"):
            if values.get(key):
                raise TokenizerError(
                    f"{self.path / 'tokenizer_config.json'}: {key} {shown(values[key])} is not "
                    "supported."
                )
        return values

    def setting(self, name: str, default: Any, kind: type) -> Any:
        """One of the settings.

        Raises:
            TokenizerError: it has another type than the default.
        """
        value = self.settings.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TokenizerError(
                f"{self.path / 'tokenizer_config.json'}: {name} {shown(value)} is not of type "
                f"{kind.__name__}."
            )
        return value

    def count(self, name: str, default: int) -> int:
        """A setting that is a number of tokens.

        Raises:
            TokenizerError: it is not a valid number.
        """
        number: int = self.setting(name, default, int)
        if not 0 <= number <= _MOST_TOKENS:
            raise TokenizerError(
                f"{self.path / 'tokenizer_config.json'}: {name} {number} is not a number of tokens "
                f"from 0 to {_MOST_TOKENS}."
            )
        return number

    @cached_property
    def listed(self) -> dict[int, dict[str, Any]]:
        """The added tokens that the folder lists, by id: the values of each.

        Raises:
            TokenizerError: an entry is no token.
        """
        decoder = self.settings.get("added_tokens_decoder")
        if isinstance(decoder, dict):
            return {self._id(key): self._token(value) for key, value in decoder.items()}
        special = {_content(self.settings.get(f"{name}_token")) for name in NAMED}
        special |= {_content(token) for token in self.extra_listed or ()}
        found = {
            self._id(value): {"content": key, "special": key in special}
            for key, value in self.read_object("added_tokens.json").items()
        }
        tokens = self.read_object("tokenizer.json").get("added_tokens")
        for token in tokens if isinstance(tokens, list) else []:
            values = self._token(token)
            found[self._id(values.get("id"))] = values
        return found

    def _id(self, value: Any) -> int:
        number = int(value) if str(value).isdecimal() and len(str(value)) < 10 else -1
        if number < 0:
            raise TokenizerError(f"{self.path}: {shown(value)} is not an id of an added token.")
        return number

    def _token(self, value: Any) -> dict[str, Any]:
        if _content(value) is None:
            raise TokenizerError(f"{self.path}: {shown(value)} is not an added token.")
        return {**value} if isinstance(value, dict) else {"content": value}

    @cached_property
    def extra_listed(self) -> Sequence[Any] | None:
        """The special tokens without a name that are listed under the newer of two keys.

        tokenizer_config.json may have them under either. Under the older key of
        special_tokens_map.json they count less: the tokenizer's class may put its own before.
        """
        values = self.read_object("tokenizer_config.json")
        found = values.get("extra_special_tokens")
        if not found and "additional_special_tokens" in values:
            found = values["additional_special_tokens"]
        found = list(found.values()) if isinstance(found, dict) else found
        if "added_tokens_decoder" not in values:
            more = self.read_object("special_tokens_map.json").get("extra_special_tokens")
            if isinstance(more, list):
                before = found if isinstance(found, list) else []
                found = [*before, *(token for token in more if token not in before)]
        return found if isinstance(found, list) else None

    @property
    def extra(self) -> Sequence[Any] | None:
        """The special tokens without a name, of whichever file lists them."""
        if self.extra_listed is not None:
            return self.extra_listed
        found = self.settings.get("additional_special_tokens")
        return found if isinstance(found, list) else None

    def special_tokens(self, defaults: Mapping[str, str], extra: Sequence[str]) -> list[str]:
        """All special tokens, each once, in the order of transformers.

        Args:
            defaults: the default tokens of the tokenizer's class, by names such as "eos".
            extra: unnamed tokens, if the folder lists none.

        Raises:
            TokenizerError: an entry is no token.
        """
        found: list[Any] = [self.named(name, defaults.get(name)) for name in NAMED]
        found += [
            value
            for key, value in self.settings.items()
            if key.endswith("_token") and key.removesuffix("_token") not in NAMED
            if not isinstance(value, bool)
        ]
        found += extra if self.extra is None else self.extra
        contents = [_content(value) for value in found if value is not None]
        if None in contents:
            raise TokenizerError(f"{self.path}: a special token is neither a string nor a token.")
        return [content for content in dict.fromkeys(contents) if content]

    def named(self, name: str, default: str | None) -> str | None:
        """The special token of a name, such as "eos".

        Raises:
            TokenizerError: the value is not a token.
        """
        value = self.settings.get(f"{name}_token", default)
        content = _content(value)
        if content is None and value is not None:
            raise TokenizerError(
                f"{self.path}: {name}_token, {shown(value)}, is neither a string nor a token."
            )
        return content


def _content(value: Any) -> str | None:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def as_json(value: Any) -> bytes:
    """A value as the content of a JSON file."""
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode()
