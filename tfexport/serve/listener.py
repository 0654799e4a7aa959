"""A socket on which connections are accepted: at every turn of the event loop all that wait.

libuv, below uvloop, accepts one a turn. Under load a turn takes long: the system's queue of
connections then overflows, and whoever is turned away there learns of it after seconds.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from tfexport.serve import journal

BACKLOG = 65_535  # connections that wait to be accepted; the system's own limit is below
AT_ONCE = 1024  # connections of a turn, so that those that are open have theirs
FEW = 32  # where there is no room: they are refused a few turns later, and need a file until then
RETRY_SECONDS = 1.0  # after the system had no file or memory left for another connection


class Listener:
    """Accepts connections until it is closed."""

    def __init__(
        self, bound: socket.socket, make: Callable[[], asyncio.Protocol], room: Callable[[], int]
    ) -> None:
        """Begin to listen, in the loop that runs.

        Args:
            bound: stays the caller's, who closes it after this.
            make: a protocol for each connection.
            room: connections that may be opened besides those that are open.

        Raises:
            OSError: it cannot be listened on.
        """
        self._loop, self._bound, self._make = asyncio.get_running_loop(), bound, make
        self._room = room
        self._opening = set[asyncio.Task[None]]()
        self._retry: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._loop.add_reader(bound, self._accept)

    async def close(self) -> None:
        """Accept no more; what was accepted is open then, and stays so."""
        self._loop.remove_reader(self._bound)
        if self._retry is not None:
            self._retry.cancel()
        await asyncio.gather(*self._opening)

    def _accept(self) -> None:
        for _ in range(min(AT_ONCE, max(self._room() - len(self._opening), FEW))):
            try:
                connection, _ = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                journal.write("not accepting", problem=str(error), seconds=RETRY_SECONDS)
                self._loop.remove_reader(self._bound)
                self._retry = self._loop.call_later(
                    RETRY_SECONDS, self._loop.add_reader, self._bound, self._accept
                )
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError:  # the client has left
            with contextlib.suppress(OSError):
                connection.close()
