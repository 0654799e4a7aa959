"""Tokenizers that are made of a model's own files, and the languages they know."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfexport.bundle import TokenizerEntry
from tfexport.errors import MissingDependencyError, TokenizerError
from tfexport.languages import Languages
from tfexport.runtime.text.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class BuiltTokenizer:
    """A tokenizer as files of a bundle, not yet written.

    Attributes:
        kind: the kind of tokenizer, as in the manifest.
        file: the name of the file that the manifest names.
        files: name to content, or to the file that is copied; ``file`` among them.
    """

    kind: str
    file: str
    files: Mapping[str, bytes | Path]

    def write(self, folder: Path) -> TokenizerEntry:
        """Write the files; one that is there already, of the other side, is written again."""
        for name, content in self.files.items():
            data = content.read_bytes() if isinstance(content, Path) else content
            (folder / name).write_bytes(data)
        return TokenizerEntry(self.kind, self.file)

    @property
    def content(self) -> bytes:
        """The content of the file that the manifest names."""
        content = self.files[self.file]
        return content.read_bytes() if isinstance(content, Path) else content

    def load(self, subject: Path, vocab_size: int, unk_id: int | None) -> Tokenizer:
        """The tokenizer, checked against the model's vocabulary.

        Args:
            subject: the folder that it was found in, for messages.
            vocab_size: the size of the model's vocabulary on this side.
            unk_id: the id of the model's unknown token.

        Raises:
            TokenizerError: its files do not make a tokenizer, or it has ids that the model lacks.
            MissingDependencyError: its library is not installed.
        """
        with tempfile.TemporaryDirectory() as name:
            self.write(Path(name))
            try:
                return load_tokenizer(Path(name) / self.file, self.kind, vocab_size, unk_id)
            except MissingDependencyError as error:
                raise MissingDependencyError(self._as_found(str(error), "")) from None
            except TokenizerError as error:
                # The file is written at export: the user knows the folder only.
                text = self._as_found(str(error), f"{name}{os.sep}")
                text = text.replace(str(Path(name) / self.file), str(subject))
                raise TokenizerError(text.replace(name, str(subject))) from None

    def _as_found(self, text: str, folder: str) -> str:
        """A message with the names of files in the user's folder instead of the bundle's."""
        for name, content in self.files.items():
            if isinstance(content, Path):
                text = re.sub(
                    rf"(?<![\w./-]){re.escape(folder + name)}\b",
                    str(content).replace("\\", r"\\"),
                    text,
                )
        return text


@dataclass(frozen=True)
class ModelTokenizers:
    """The tokenizers of a Hugging Face folder.

    Attributes:
        folder: the folder of the model.
        source: the tokenizer of the source.
        target: the tokenizer of the target.
        paths: the files that were read.
        languages: that the tokenizer has tokens for, in the form of the manifest's ``languages``;
            None if there are none.
    """

    folder: Path
    source: BuiltTokenizer
    target: BuiltTokenizer
    paths: tuple[Path, ...]
    languages: Languages | None = None


# Languages that the tokenizers of transformers know without a file that lists them, in order.
_MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART50 = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms "
    "my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur "
    "uz vi wo xh yi yo zh zu"
)
MBART = _MBART.split()
MBART50 = f"{_MBART} {_MBART50}".split()
M2M100 = {"m2m100": _M2M100.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}
PLBART = {
    "base": ["java", "python", "en_XX"],
    "multi": ["java", "python", "en_XX", "javascript", "php", "ruby", "go"],
}
