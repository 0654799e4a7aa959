"""Workers in this process: threads with one set of weights.

They start at once; Ray's processes take seconds. If the process ends, the same command continues
the run.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from queue import SimpleQueue

from tfexport.corpus.assembly import RunSettings
from tfexport.corpus.decoders import CorpusDecoder
from tfexport.corpus.partitions import Partition
from tfexport.corpus.stages import Coordinator, PieceStep, PieceTranslator, scan_partition

_JOINS = 4
_NO_MEMORY = "not enough memory; use fewer workers"


class ThreadWorkers:
    """See ``run.CorpusWorkers``.

    Attributes:
        cores: the number of cores that decode.
    """

    def __init__(self, decoder: CorpusDecoder, job: RunSettings, cores: int) -> None:
        """Prepare, without starting a thread.

        Args:
            decoder: decodes as many batches at a time as there are cores; it is closed at the end.
            job: the settings of the run.
            cores: the number of cores that decode.
        """
        self._decoder, self._job, self.cores = decoder, job, cores
        self._translator = PieceTranslator(decoder, job)
        self._coordinator, self._joiner = Coordinator(job), ThreadPoolExecutor(_JOINS)
        self._joining = dict[Future[PieceStep], PieceStep]()

    def __enter__(self) -> "ThreadWorkers":
        """Enter the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the joins that are running."""
        self._joiner.shutdown(cancel_futures=True)
        if kind is None:
            self._decoder.close()

    def steps(self, partitions: list[Partition]) -> Generator[PieceStep]:
        """See ``run.CorpusWorkers``."""
        threads, running = _Threads(self._most_pieces), deque[tuple[int, Future[PieceStep]]]()
        try:
            for step in self._scanned(partitions):
                rows = 0 if step.piece is None else step.piece.rows
                running.append((rows, threads.submit(self._translated, step)))
                while self._is_enough(running):
                    yield running.popleft()[1].result()
            while running:
                yield running.popleft()[1].result()
        except BaseException as error:  # also if the caller stops
            self._translator.ended = True
            if not isinstance(error, KeyboardInterrupt):  # an interrupted run does not wait
                wait_for([done for _, done in running if not done.cancel()])
            raise
        finally:
            threads.end()

    @property
    def _most_pieces(self) -> int:
        """Pieces at a time. With one core, the threads that read pieces decode them."""
        return 1 if self.cores == 1 else self.cores + 1

    def _is_enough(self, running: deque[tuple[int, Future[PieceStep]]]) -> bool:
        """Whether enough pieces are running: two full ones, or as many small ones as cores."""
        rows = sum(rows for rows, _ in running)
        whole = len(running) > 2 and rows > 2 * self._job.batch_rows
        return whole or len(running) > self._most_pieces

    def _scanned(self, partitions: list[Partition]) -> Iterator[PieceStep]:
        for partition in partitions:
            try:
                yield from scan_partition(partition, self._job)
            except MemoryError:
                yield PieceStep(partition.name, stopped=_NO_MEMORY)

    def _translated(self, step: PieceStep) -> PieceStep:
        try:
            return self._translator.translate(step)
        except MemoryError:
            return PieceStep(step.name, stopped=_NO_MEMORY)

    def _joined(self, partition: Partition, step: PieceStep) -> PieceStep:
        try:
            return self._coordinator.join(partition, step.digest, step.pieces)
        except MemoryError:
            return PieceStep(partition.name, stopped=_NO_MEMORY)

    def join(self, partition: Partition, step: PieceStep) -> None:
        """See ``run.CorpusWorkers``."""
        self._joining[self._joiner.submit(self._joined, partition, step)] = step

    @property
    def joining(self) -> int:
        """See ``run.CorpusWorkers``."""
        return len(self._joining)

    def joined(self, wait: bool) -> list[tuple[PieceStep, PieceStep]]:
        """See ``run.CorpusWorkers``."""
        if not self._joining:
            return []
        ready, _ = wait_for(self._joining, None if wait else 0, FIRST_COMPLETED)
        return [(done.result(), self._joining.pop(done)) for done in ready]


class _Threads:
    """A pool of daemon threads: an interrupted process does not wait for them."""

    def __init__(self, count: int) -> None:
        self._jobs = SimpleQueue[Callable[[], None] | None]()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(self, work: Callable[[PieceStep], PieceStep], step: PieceStep) -> Future[PieceStep]:
        done: Future[PieceStep] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(step))
            except BaseException as error:
                done.set_exception(error)

        self._jobs.put(run)
        return done

    def end(self) -> None:
        """Let the threads end after the work that is queued."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
