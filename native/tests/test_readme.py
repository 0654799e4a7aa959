"""native/README.md: the tables of the sources and of the instruction sets."""

import re
from pathlib import Path

NATIVE = Path(__file__).parents[1]
FAR = 0.25  # a share of a file's lines by which the table may be behind


def lines(name: str) -> int:
    """Of a file, or of a source with its header."""
    folder = NATIVE / "engine"
    files = [folder / name] if "." in name else [folder / f"{name}{end}" for end in (".cpp", ".h")]
    return sum(len(file.read_text().splitlines()) for file in files if file.exists())


def test_the_table_has_every_source_and_about_its_lines() -> None:
    rows = re.findall(
        r"^\| (`.*`) \| [^|]* \| ([\d, ]+) \|$", (NATIVE / "README.md").read_text(), re.M
    )
    listed: dict[str, int] = {}
    for names, counts in rows:
        found = re.findall(r"`([\w./]+)`", names)
        folder = "kernels/" if found[0].startswith("kernels/") else ""
        found = [folder + name.removeprefix("kernels/") for name in found]
        listed |= dict(zip(found, map(int, counts.split(", ")), strict=True))
    folder = NATIVE / "engine"
    stems = {path.stem for path in folder.iterdir() if path.is_file()}
    kernels = {f"kernels/{path.name}" for path in (folder / "kernels").glob("*.cpp")}
    assert stems | kernels <= set(listed)
    assert {name: lines(name) for name, said in listed.items()
            if abs(lines(name) - said) > FAR * lines(name) + 5} == {}  # fmt: skip


def test_the_tables_have_every_instruction_set() -> None:
    built = re.findall(r"^ *add_set\((\w+) ", (NATIVE / "CMakeLists.txt").read_text(), re.M)
    built += re.findall(r"SET\((\w+)\)", (NATIVE / "wasm" / "CMakeLists.txt").read_text())
    page = (NATIVE / "README.md").read_text()
    assert len(built) > 3
    assert re.findall(r"^\| `(\w+)` \| `\1\.cpp` \|", page, re.M) == built
    tested = page.partition("| Sets | How they are tested |")[2].partition("\n\n")[0]
    assert set(built) <= set(re.findall(r"`(\w+)`", tested))
