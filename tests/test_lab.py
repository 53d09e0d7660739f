"""A reader, end to end: a real Chromium opens notebooks and moves sliders by keyboard.

In JupyterLab, and what concerns keys and kernels in Notebook 7 too; one server has both.

`pytest tests/test_lab.py -s` also prints the time from key press to painted picture.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest

from course import explore

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = """--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
 --disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions""".split()
ROOT = pathlib.Path(__file__).parents[1]
TOKEN = "explorers"
SETTINGS = {
    # every cell stays in the page, also those out of sight
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}

playwright = pytest.importorskip("playwright.sync_api")
expect, sync_playwright = playwright.expect, playwright.sync_playwright

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not BROWSER, reason=f"no browser; looked for {', '.join(BROWSERS)}"),
]


@contextlib.contextmanager
def jupyterlab(root, scratch):
    """The address of a JupyterLab that serves `root` and keeps its own settings in `scratch`."""
    for name, values in SETTINGS.items():
        file = scratch / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces"),
        "PYTHONPATH": str(ROOT),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}"),
        *(f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly"),
    ]
    with (scratch / "lab.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(address, server), "JupyterLab")
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def get(address, path):
    with urllib.request.urlopen(f"{address}/api/{path}?token={TOKEN}", timeout=5) as answer:
        return json.load(answer)


def answers(address, server):
    assert server.poll() is None, "JupyterLab ended before it answered"
    with contextlib.suppress(OSError):
        return get(address, "status")


def wait_for(ready, what, seconds=60):
    """Poll until `ready()`; what JupyterLab has no event for."""
    end = time.monotonic() + seconds
    while not (answer := ready()):
        assert time.monotonic() < end, f"{what} not ready after {seconds} s"
        time.sleep(0.05)
    return answer


APPS = {"JupyterLab": "lab/tree", "Notebook 7": "notebooks"}


def open_notebook(page, address, name, app="JupyterLab"):
    """Open a notebook and wait until its kernel is idle and the page knows it."""
    page.goto(f"{address}/{APPS[app]}/{name}?reset&token={TOKEN}")
    notebook = page.locator(".jp-NotebookPanel")
    notebook.locator(".jp-CodeCell").first.wait_for(timeout=60_000)
    wait_for(lambda: idle_kernel(address), "the kernel")
    wait_until_idle(page)
    return notebook


def wait_until_idle(page):
    """Until the page says that its kernel is idle."""
    idle = page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]').first
    idle.wait_for(state="attached", timeout=60_000)


def idle_kernel(address):
    kernels = [session["kernel"] for session in get(address, "sessions")]
    return any(k["execution_state"] == "idle" and k["connections"] for k in kernels)


def run_all(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def shut_down(page, address):
    """Leave the notebook and end its kernel."""
    wait_until_idle(page)  # a kernel that is starting cannot be ended
    page.goto("about:blank")
    for session in get(address, "sessions"):
        url = f"{address}/api/sessions/{session['id']}?token={TOKEN}"
        urllib.request.urlopen(urllib.request.Request(url, method="DELETE"))


def pictures(cell):
    """Which of a cell's two pictures a reader sees."""
    return cell.evaluate(
        """cell => [...cell.querySelectorAll("figure")].filter(f => f.offsetParent)
        .map(f => f.className.replace("course-explorer-", ""))"""
    )


def write(file, *sources):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, file)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    root, scratch = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("lab")
    with jupyterlab(root, scratch) as address:
        yield address, root


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1366, "height": 900})
    errors = []
    # Notebook 7 throws one of its own when it loads.
    own = "/static/notebook/notebook_core"
    page.on("pageerror", lambda e: None if own in (e.stack or "") else errors.append(str(e)))
    yield page
    page.close()
    assert not errors


STANDS_STILL = "This picture stands still. To move it, run the first code cell, then this one."
TOY = f"""import sys
sys.path[:0] = [{str(ROOT / "tests")!r}]
import ipywidgets
from test_explorer import compute, toy
def fragile(power, **rest):
    return compute(power=9 / (9 - power), **rest)"""


def test_a_reader_moves_a_slider_and_comes_back_another_day(lab, page):
    address, root = lab
    write(
        root / "toy.ipynb",
        TOY,
        "toy(compute=fragile, play='power', scale=0.1)",
        "len(ipywidgets.widget._instances)",
    )
    notebook = open_notebook(page, address, "toy.ipynb")
    cell, count = notebook.locator(".jp-CodeCell").nth(1), notebook.locator(".jp-CodeCell").nth(2)
    run_all(page)
    image = cell.locator(".course-explorer-live img")
    image.wait_for()
    assert pictures(cell) == ["live"]

    # every control has a name, and a slider says its value, not its index or exponent
    power = cell.get_by_role("slider", name="power", exact=True)
    expect(power).to_have_attribute("aria-valuetext", "2")
    expect(cell.get_by_role("slider", name="scale")).to_have_attribute("aria-valuetext", "0.100")
    expect(cell.get_by_role("combobox", name="kind")).to_be_visible()
    expect(cell.get_by_role("button", name="power: back to the start")).to_be_visible()
    expect(image).to_have_attribute("alt", 'A "power"')
    caption, spoken = cell.locator("figcaption >> visible=true"), cell.get_by_role("status")
    assert image.get_attribute("aria-describedby") == caption.get_attribute("id")

    # the keyboard moves the slider, and with it the picture and the words
    first = image.get_attribute("src")
    power.focus()
    page.keyboard.press("ArrowRight")
    expect(caption).to_have_text("Power 1.5, <A>.")
    expect(image).not_to_have_attribute("src", first)
    expect(spoken).to_have_text("Power 1.5, <A>.")
    cell.get_by_role("combobox", name="kind").select_option("b word")
    expect(caption).to_have_text("Power 1.5, <B>.")

    # D8: a setting that fails says so, in the output; the next one clears it
    power.focus()
    page.keyboard.press("End")
    expect(caption).to_contain_text("This setting failed. ZeroDivisionError")
    expect(cell.locator(".course-explorer-failed")).to_have_count(1)
    page.keyboard.press("Home")
    expect(caption).to_have_text("Power 1.125, <B>.")
    expect(cell.locator(".course-explorer-failed")).to_have_count(0)

    # the play button steps
    cell.get_by_role("button", name="power: play or pause").click()
    expect(caption).to_have_text("Power 1.5, <B>.")
    cell.get_by_role("button", name="power: back to the start").click()

    # D6: the cell run again is one picture still, and no widgets pile up
    widgets = count.locator(".jp-OutputArea-output").inner_text()
    for run in ("[6]:", "[9]:"):
        run_all(page)
        expect(count.locator(".jp-InputArea-prompt")).to_have_text(run)
    expect(caption).to_have_text("Power 1.2857142857142858, <A>.")
    assert pictures(cell) == ["live"]
    assert count.locator(".jp-OutputArea-output").inner_text() == widgets

    # the kernel starts anew: the stored picture is back, with a note; and so another day
    page.keyboard.press("Control+s")
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem").filter(has_text="Restart Kernel").first.click()
    page.locator(".jp-Dialog-button.jp-mod-accept").click()
    expect(cell.get_by_text(STANDS_STILL)).to_be_visible()
    assert pictures(cell) == ["still"]
    shut_down(page, address)
    open_notebook(page, address, "toy.ipynb")
    expect(cell.get_by_text(STANDS_STILL)).to_be_visible()
    expect(cell.get_by_text("model not found")).not_to_be_visible()
    assert pictures(cell) == ["still"]
    stored = nbformat.read(root / "toy.ipynb", 4)
    assert "widgets" not in stored.metadata
    shut_down(page, address)


KINDS = f"""import sys, os, signal
sys.path[:0] = [{str(ROOT)!r}]
import ipywidgets as w
from course.explore import Explorer
def draw(fig, data):
    text = fig.text(0.1, 0.5, "")
    return lambda data: [text.set(text=str(data)) and text]
def kinds():
    controls = {{
        "whole": w.IntSlider(4, min=0, max=20), "real": w.FloatSlider(4, min=0, max=20),
        "log": w.FloatLogSlider(1, min=-2, max=2, step=1), "pick": w.SelectionSlider(options="abcd"),
        "menu": w.Dropdown(options=["a", "b", "x"]), "tick": w.Checkbox(True),
    }}
    for name, control in controls.items():
        control.description = name
    words = lambda data: " ".join(f"{{name}}={{value}}" for name, value in data.items())
    return Explorer(dict, draw, words, controls, "kinds", play="whole", size=(4, 3))
e = kinds()"""
LATER = """e.box.children += (w.IntSlider(description="late"), w.Text(description="later"))"""
# A control by its role and name, and what each key that it knows makes of the words.
KEYS = {
    ("slider", "whole"): {
        "ArrowUp": "whole=5", "ArrowDown": "whole=4", "ArrowRight": "whole=5", "ArrowLeft": "whole=4",
        "PageUp": "whole=9", "PageDown": "whole=4", "End": "whole=20", "Home": "whole=0",
    },
    ("slider", "real"): {"ArrowUp": "real=4.1", "ArrowLeft": "real=4.0", "End": "real=20.0"},
    ("slider", "log"): {"ArrowUp": "log=10.0", "ArrowDown": "log=1.0", "Home": "log=0.01"},
    ("slider", "pick"): {"ArrowUp": "pick=b", "ArrowDown": "pick=a", "End": "pick=d"},
    ("combobox", "menu"): {"ArrowDown": "menu=b", "ArrowUp": "menu=a", "End": "menu=x", "b": "menu=b"},
    ("checkbox", "tick"): {"Space": "tick=False"},
    ("button", "whole: back to the start"): {"Enter": "whole=0", "Space": "whole=0"},
    ("slider", "late"): {},
    ("textbox", "later"): {},
}  # fmt: skip
# What they mean in JupyterLab and Notebook 7: move, insert, cut, delete, change, fold, run, undo.
SHORTCUTS = "ArrowUp ArrowDown j k a b x c v d d m y r 1 z s l o Space Shift+Enter Control+Enter"


def arrangement(notebook):
    """The cells of a notebook, their kinds and prompts, and which is active."""
    return notebook.evaluate(
        """panel => [...panel.querySelectorAll(".jp-Notebook .jp-Cell")].map(cell => [
        cell.className.match(/jp-\\w+Cell|jp-mod-active/g).join(" "),
        cell.querySelector(".jp-InputPrompt")?.innerText])"""
    )


def ring(control):
    """The ring around a control that has the focus, and whether a box around it cuts some of it off."""
    return control.evaluate(
        """control => {
          const style = getComputedStyle(control), room = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
          const {left, top, right, bottom} = control.getBoundingClientRect();
          let cut = false;
          for (let box = control.parentElement; box !== document.body; box = box.parentElement) {
            if (getComputedStyle(box).overflow === "visible") continue;
            const edge = box.getBoundingClientRect();
            cut ||= left - room < edge.left || top - room < edge.top;
            cut ||= right + room > edge.right || bottom + room > edge.bottom;
          }
          return `${style.outlineWidth} ${style.outlineStyle}, ${cut ? "cut" : "whole"}`;
        }"""
    )


@pytest.mark.parametrize("app", APPS)
def test_a_control_keeps_its_keys_and_shows_that_it_has_the_focus(lab, page, app):
    address, root = lab
    write(root / "keys.ipynb", KINDS, "e", LATER)
    notebook = open_notebook(page, address, "keys.ipynb", app)
    run_all(page)
    cell = notebook.locator(".jp-CodeCell").nth(1)
    caption = cell.locator("figcaption >> visible=true")
    cell.get_by_role("slider", name="late").wait_for()
    wait_until_idle(page)

    for (role, name), keys in KEYS.items():
        control = cell.get_by_role(role, name=name, exact=True)
        control.focus()
        before = arrangement(notebook)
        assert sum("jp-CodeCell" in kinds for kinds, _prompt in before) == 3
        for key, words in keys.items():
            page.keyboard.press(key)
            expect(caption).to_contain_text(words)
        wait_for(lambda c=control: ring(c) == "3px solid, whole", f"{name}: {ring(control)}", 5)
        for key in SHORTCUTS.split():
            page.keyboard.press(key)
        page.wait_for_timeout(100)
        assert arrangement(notebook) == before, f"keys on {name} changed the notebook"

    # a number is typed into the readout of the first slider
    cell.locator(".widget-readout").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.type("17")
    page.keyboard.press("Enter")
    expect(caption).to_contain_text("whole=17")
    assert arrangement(notebook) == before
    shut_down(page, address)


@pytest.mark.parametrize("app", APPS)
def test_a_dead_kernel_is_seen(lab, page, app):
    """The stored picture takes the place of the controls that move nothing, and says what to do."""
    address, root = lab
    write(root / "dead.ipynb", KINDS, "e", "os.kill(os.getpid(), signal.SIGKILL)")
    notebook = open_notebook(page, address, "dead.ipynb", app)
    cell, kill = notebook.locator(".jp-CodeCell").nth(1), notebook.locator(".jp-CodeCell").nth(2)

    def run(*cells):
        for cell in cells:
            cell.locator(".jp-InputArea-editor").click()
            page.keyboard.press("Control+Enter")

    run(notebook.locator(".jp-CodeCell").first, cell)
    cell.get_by_role("slider", name="whole", exact=True).wait_for()
    assert pictures(cell) == ["live"]
    run(kill)
    expect(cell.get_by_text(STANDS_STILL)).to_be_visible(timeout=30_000)
    assert pictures(cell) == ["still"]
    page.locator(".jp-Dialog-button.jp-mod-accept").click()  # "The kernel appears to have died"
    wait_until_idle(page)

    # what the words say is true; and a kernel that is shut down is seen as well
    run(notebook.locator(".jp-CodeCell").first, cell)
    cell.get_by_role("slider", name="whole", exact=True).wait_for()
    assert pictures(cell) == ["live"]
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Shut Down Kernel", exact=True).click()
    expect(cell.get_by_text(STANDS_STILL)).to_be_visible()
    page.goto("about:blank")


def test_the_picture_is_as_sharp_as_the_screen(lab, page):
    address, root = lab
    write(root / "sharp.ipynb", KINDS, "e")
    notebook = open_notebook(page, address, "sharp.ipynb")
    run_all(page)
    image = notebook.locator(".course-explorer-live img")
    image.wait_for()
    screen = page.context.new_cdp_session(page)
    for ratio, columns in [(1, 400), (2, 800), (1.5, 600), (3, 800), (1, 400)]:
        # as by the browser's zoom: fewer CSS pixels, each of more of the screen's
        view = {"width": round(1366 / ratio), "height": 900, "deviceScaleFactor": ratio}
        screen.send("Emulation.setDeviceMetricsOverride", view | {"mobile": False})
        page.wait_for_function(
            "n => document.querySelector('.course-explorer-live img').naturalWidth == n",
            arg=columns,
        )
        assert image.get_attribute("width") == "400"
    shut_down(page, address)


def test_every_explorer_of_the_course_is_one_live_picture_that_follows_the_keyboard(lab, page):
    if not explore.EXPLORERS:
        pytest.skip("no explorer is registered yet")
    address, root = lab
    cells = [f"explore.{name}()" for name in explore.EXPLORERS]
    write(root / "all.ipynb", "from course import explore", *cells)
    notebook = open_notebook(page, address, "all.ipynb")
    run_all(page)
    cells = dict(zip(explore.EXPLORERS, notebook.locator(".jp-CodeCell").all()[1:], strict=True))
    for name, cell in cells.items():
        cell.locator(".course-explorer-live img").wait_for(timeout=60_000)
        assert pictures(cell) == ["live"], name
        assert not unnamed(cell), name
    wait_until_idle(page)
    milliseconds = []
    for cell in cells.values():
        if cell.get_by_role("slider").count():
            milliseconds += key_to_picture(page, cell)
    shut_down(page, address)
    median, p95 = (statistics.quantiles(milliseconds, n=20)[i] for i in (9, 18))
    print(f"\nkey to painted picture: median {median:.0f} ms, 95th percentile {p95:.0f} ms")


def unnamed(cell):
    """The controls that a screen reader has no name for."""
    return cell.evaluate(
        """cell => [...cell.querySelectorAll(
          ".course-explorer :is([role=slider], select, input, button:not([style*='display: none']))")]
        .filter(e => !(e.ariaLabel || e.innerText || [...e.labels ?? []].some(l => l.innerText)))
        .map(e => e.outerHTML)"""
    )


def key_to_picture(page, cell):
    """Milliseconds from a key press on the first slider until its new picture is on the screen."""
    cell.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(300)
    cell.locator(".course-explorer-live img").evaluate(
        """image => {
          window.keyTimes = [];
          let pressed;
          document.onkeydown = () => { pressed = performance.now(); };
          image.onload = () => requestAnimationFrame(() => setTimeout(() => {
            if (pressed) window.keyTimes.push(performance.now() - pressed);
            pressed = undefined;
          }));
        }"""
    )
    for press, key in enumerate(["End", "Home"] * 4):  # a step may be too small to see
        page.keyboard.press(key)
        page.wait_for_function("n => window.keyTimes.length > n", arg=press, timeout=5000)
    return page.evaluate("window.keyTimes")


def test_outside_jupyterlab_the_live_picture_hides_the_stored_one_before_it(page):
    """As in VS Code, where no class names of JupyterLab are."""
    script = (ROOT / "course/explore/explorer.js").read_text(encoding="utf-8")
    page.set_content(
        """<figure class="course-explorer-still">mine</figure><div id="live"></div>
        <figure class="course-explorer-still">the next cell's</figure>"""
    )
    page.evaluate(
        """async script => {
          const module = await import(URL.createObjectURL(new Blob([script], {type: "text/javascript"})));
          const values = {title: "t", caption: "c", error: "", width: 100, png: new Uint8Array()};
          const model = {get: name => values[name], set() {}, save_changes() {}, on() {}, off() {}};
          window.end = module.default.render({model, el: document.getElementById("live")});
        }""",
        script,
    )
    expect(page.get_by_text("mine")).to_be_hidden()
    expect(page.get_by_text("the next cell's")).to_be_visible()
    page.evaluate("window.end()")
    expect(page.get_by_text("mine")).to_be_visible()
