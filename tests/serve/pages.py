"""What tests do with the page in a browser."""

import time
from typing import Any


def key(name: str) -> str:
    from selenium.webdriver.common.keys import Keys

    return str(getattr(Keys, name))


def wait(condition: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def text_of(page: Any, name: str) -> str:
    return str(
        page.execute_script("return document.getElementById(arguments[0]).textContent", name)
    )


def words(page: Any) -> list[Any]:
    return list(page.find_elements("css selector", ".word"))


def options(page: Any) -> list[Any]:
    return list(page.find_elements("css selector", "#alternatives [role=option]"))


def focused(page: Any) -> Any:
    return page.switch_to.active_element


def press(page: Any, *names: str) -> None:
    for name in names:
        focused(page).send_keys(key(name) if len(name) > 1 else name)


def write(page: Any, text: str) -> None:
    """Type a text, and wait for words that one can go to."""
    page.find_element("id", "source").send_keys(text)
    wait_for_words(page)


def tap(page: Any, element: Any) -> None:
    """Touch an element with a finger."""
    code = """
      arguments[0].scrollIntoView({ block: "center" });
      const { left, top, width, height } = arguments[0].getBoundingClientRect();
      return { x: left + width / 2, y: top + height / 2 };
    """
    place = page.execute_script(code, element)
    for kind, points in (("touchStart", [place]), ("touchEnd", [])):
        event = {"type": kind, "touchPoints": points}
        page.execute_cdp_cmd("Input.dispatchTouchEvent", event)


def wait_for_words(page: Any) -> None:
    """Wait until what is typed is translated, and its words can be gone to."""
    pane = page.find_element("id", "translation")
    wait(lambda: pane.get_attribute("aria-busy") == "false")
    assert words(page)


def empty(page: Any) -> None:
    page.find_element("id", "source").send_keys(key("CONTROL") + "a", key("DELETE"))


def marks(page: Any) -> dict[str, float]:
    """The shaded words of the source, with how much."""
    code = """return [...document.querySelectorAll("#mirror mark")].map((mark) =>
      [mark.textContent, Number(mark.style.getPropertyValue("--weight"))])"""
    return dict(page.execute_script(code))
