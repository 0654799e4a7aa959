"""Workers in this process: threads over one set of weights, on this machine alone.

They begin at once, where Ray's processes take seconds. If the process dies, the same command goes
on, as it does behind Ray's driver.
"""

from collections import deque
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from tfexport.corpus.assembly import Job
from tfexport.corpus.partitions import Partition
from tfexport.corpus.row_decoder import RowDecoder
from tfexport.corpus.stages import Coordinator, PieceTranslator, Step, scan_partition


class ThreadWorkers:
    """See ``run.Workers``.

    Attributes:
        cores: that decode.
    """

    def __init__(self, decoder: RowDecoder, job: Job, cores: int) -> None:
        """Start nothing yet.

        Args:
            decoder: which decodes as many batches at a time as there are cores.
            job: that is done.
            cores: that decode.
        """
        self._translator, self._job, self.cores = PieceTranslator(decoder, job), job, cores
        # One is decoded while another is read or written. With one core, they decode themselves.
        self._pieces = min(cores, 2)
        self._coordinator, self._joiner = Coordinator(job), ThreadPoolExecutor(1)
        self._joining = dict[Future[Step], Step]()

    def __enter__(self) -> "ThreadWorkers":
        """End with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the join that is under way."""
        self._joiner.shutdown(cancel_futures=True)

    def steps(self, partitions: list[Partition]) -> Generator[Step]:
        """See ``run.Workers``."""
        pool = ThreadPoolExecutor(self._pieces)
        running = deque[Future[Step]]()
        try:
            for partition in partitions:
                for step in scan_partition(partition, self._job):
                    running.append(pool.submit(self._translated, step))
                    if len(running) > self._pieces:
                        yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _translated(self, step: Step) -> Step:
        try:
            return self._translator.translate(step)
        except MemoryError:
            return Step(step.name, stopped="not enough memory: fewer workers need less")

    def join(self, partition: Partition, step: Step) -> None:
        """See ``run.Workers``."""
        done = self._joiner.submit(self._coordinator.join, partition, step.digest, step.pieces)
        self._joining[done] = step

    @property
    def joining(self) -> int:
        """See ``run.Workers``."""
        return len(self._joining)

    def joined(self, wait: bool) -> list[tuple[Step, Step]]:
        """See ``run.Workers``."""
        if not self._joining:
            return []
        ready, _ = wait_for(self._joining, None if wait else 0, FIRST_COMPLETED)
        return [(done.result(), self._joining.pop(done)) for done in ready]
