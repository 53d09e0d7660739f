"""A reader's code at work: it may loop for ever, leave the program or crash it, and the check goes on.

Nothing here needs a certain thread or a signal, so it works alike on Linux, macOS and Windows, in
JupyterLab's kernel and in a script. What it cannot end is one single step that never returns, as
sum(range(10**18)): Python has no say until such a step is done.
"""

import builtins
import contextlib
import ctypes
import io
import os
import pickle
import signal
import sys
import threading
import time
import warnings


class TimeIsUp(BaseException):
    """Raised inside what takes too long. No Exception, so that `except Exception` lets it through."""


def limited(function, seconds: float):
    """function(); TimeIsUp is raised inside it once it has taken so many seconds."""
    done, me, end = [], threading.get_ident(), time.monotonic() + seconds

    def watch():
        at = end
        while not done:
            time.sleep(0.05)
            if time.monotonic() > at and not done:
                _raise(me, TimeIsUp)
                at += 0.5  # and again, should an `except:` have swallowed it

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return function()
        finally:
            done.append(True)
    finally:  # twice: the first may be cut short
        done.append(True)
        if time.monotonic() > end - 0.1:
            watcher.join()
        _raise(me, None)


def _raise(thread, error):
    """Raise an error in a thread at its next step; None takes back one that is on its way."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), error and ctypes.py_object(error)
    )


class Waits(RuntimeError):
    """The attempt asks somebody for something, and a check cannot wait."""


@contextlib.contextmanager
def at_home():
    """Nothing in here ends the program or waits for an answer: exit() raises SystemExit in IPython too."""

    def leave(*_):
        raise SystemExit

    def ask(*_, **__):
        raise Waits("it waits for an answer")

    changes = [(builtins, "input", ask), (sys, "breakpointhook", ask)]
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    if hasattr(shell, "ask_exit"):
        changes.append((shell, "ask_exit", leave))
    before = [getattr(owner, name) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for (owner, name, _), old in zip(changes, before, strict=True):
            setattr(owner, name, old)


class Crashed(Exception):
    """The child process ended without a result; its text is the name of the signal, or the status."""


def apart(function):
    """function(), run in a copy of this process, which it may crash: then Crashed is raised.

    Its result must be picklable; what it prints is printed here at its end. Where processes cannot
    be copied (Windows), or a copy could not go on using the GPU, it runs here.
    """
    torch = sys.modules.get("torch")
    if not hasattr(os, "fork") or (torch and torch.cuda.is_initialized()):
        return function()
    sys.stdout.flush()
    here, there = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none is needed over there
        child = os.fork()
    if not child:
        _over_there(function, there)
    os.close(there)
    try:
        with open(here, "rb") as pipe:
            data = pipe.read()
    except BaseException:  # the reader stops the check
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not data:
        code = os.waitstatus_to_exitcode(status)
        raise Crashed(signal.Signals(-code).name if code < 0 else f"status {code}")
    printed, result, error = pickle.loads(data)
    print(printed, end="")
    if error:
        raise error
    return result


def _over_there(function, pipe):
    """In the child: send what function() prints, returns or raises, and end, whatever happens."""
    try:
        sys.stdout = sys.stderr = io.StringIO()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # the threads of its pool were not copied
        result = error = None
        try:
            result = function()
        except Exception as raised:
            error = raised
        with open(pipe, "wb") as out:
            out.write(pickle.dumps((sys.stdout.getvalue(), result, error)))
    finally:
        os._exit(0)
