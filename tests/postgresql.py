"""A PostgreSQL server of the tests' own: Debian's binaries, a temporary folder, a Unix socket, never as root."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")) if find_spec("psycopg") else []
"""Empty where no server, or not its driver, is installed: what needs one is then not collected."""

_numbers = itertools.count()


class Server:
    """One running server, with databases that are lent to tests, emptied, and lent again."""

    def __init__(self) -> None:
        self._bin = BINARIES[-1].parent
        self._user = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self._folder / "data"), "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
        settings = ("listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off")
        self._server = subprocess.Popen(
            [
                *(str(self._bin / "postgres"), "-D", str(self._folder / "data"), "-k", str(self._folder)),
                *itertools.chain.from_iterable(("-c", setting) for setting in settings),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "log").open("wb"),
            cwd="/",
            **self._as_user(),
        )
        self._free: list[str] = []
        self._wait()

    @contextmanager
    def lend(self) -> Iterator[Callable[[], str]]:
        """Gives URLs of empty databases, until the end."""
        import psycopg

        lent: list[str] = []

        def new_database() -> str:
            if self._free:
                lent.append(self._free.pop())
            else:
                lent.append(f"test{next(_numbers)}")
                self._run("createdb", "-h", str(self._folder), "-U", "tester", lent[-1])
            return self._url(lent[-1])

        yield new_database
        for name in lent:
            with psycopg.connect(self._url(name), autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
        self._free += lent

    def _url(self, name: str) -> str:
        return f"postgresql://tester@/{name}?host={self._folder}"

    def stop(self) -> None:
        self._server.send_signal(signal.SIGQUIT)  # at once: nothing is kept
        try:
            self._server.wait(20)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            ready = subprocess.run(
                [str(self._bin / "pg_isready"), "-h", str(self._folder), "-q"], check=False, cwd="/"
            ).returncode
            if ready == 0:
                return
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text(errors="replace"))
            time.sleep(0.1)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / program), *arguments], check=True, stdout=subprocess.DEVNULL, cwd="/", **self._as_user()
        )

    def _as_user(self) -> dict[str, int]:
        return {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}


def _unprivileged() -> pwd.struct_passwd | None:
    """The user a server runs as, where the tests run as root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
