"""Map a function over many items in local processes or on a Dask cluster, in order and with a progress bar.

Jobs may be run again when a worker dies, so a job must write its output atomically (`atomic_write`). Then nothing is
lost, and nothing is in the output twice.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from multiprocessing import parent_process
from typing import Any, Generic, Literal, Protocol, TypeVar

from tqdm import tqdm

from tympan.errors import UserError
from tympan.runtime.child import spawn_context
from tympan.runtime.packages import import_optional

Item = TypeVar("Item")
Result = TypeVar("Result")
Promised = TypeVar("Promised", covariant=True)

MOST_PROCESSES = 1024
ATTEMPTS = 3
"""Give up after a worker has died this many times while processing the same item."""
CONNECT_TIMEOUT_S = 10
NO_WORKERS_TIMEOUT_S = 300.0
"""Give up after a Dask cluster has had no workers for this time."""


def map_jobs(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    nj: int,
    description: str,
    executor: Literal["local", "dask"] = "local",
    dask_address: str | None = None,
    weight: Callable[[Item], int] | None = None,
    unit: str = "job",
) -> Iterator[Result]:
    """Yield function(item) for each item, in the order of the items.

    `function` must be importable and the items picklable. With `nj` 1, local jobs run in this process. The progress
    bar counts items, or their weight (such as utterances per job). An exception in a job stops all jobs and is raised
    here.
    """
    if not 1 <= nj <= MOST_PROCESSES:
        raise UserError(f"--nj {nj}: must be between 1 and {MOST_PROCESSES}")
    jobs = list(items) if not isinstance(items, Sized) else items
    total = sum(map(weight, jobs)) if weight else len(jobs)
    with tqdm(total=total, desc=description, unit=unit, dynamic_ncols=True, disable=None, file=sys.stderr) as bar:
        for item, result in _run(function, jobs, nj=nj, executor=executor, dask_address=dask_address):
            bar.update(weight(item) if weight else 1)
            yield result


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes, each with one thread. They end with this process, even if it is killed."""
    return ProcessPoolExecutor(workers, mp_context=spawn_context(), initializer=_prepare_worker)


def _run(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    nj: int,
    executor: str,
    dask_address: str | None,
) -> Iterator[tuple[Item, Result]]:
    workers: _Workers
    if executor == "dask":
        workers = _Dask(dask_address)
    elif executor != "local":
        raise UserError(f"--executor '{executor}': must be local or dask")
    elif nj == 1:
        for item in items:
            yield item, function(item)
        return
    else:
        workers = _Local(nj)
    yield from _in_order(workers, function, items, ahead=4 * nj)


class _Promise(Protocol[Promised]):
    """The part of the interface of a future that is used here."""

    def result(self) -> Promised: ...


class _Workers(Protocol):
    def submit(self, function: Callable[[Item], Result], item: Item) -> _Promise[Result]: ...

    def restart(self) -> None: ...

    def close(self, *, is_failed: bool) -> None: ...


def _in_order(
    workers: _Workers, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Keep at most `ahead` jobs running or waiting to be collected, so that a million items need little memory."""
    source = iter(items)
    waiting: deque[tuple[Item, _Promise[Result]]] = deque()
    attempts = 1
    is_failed = True
    try:
        while True:
            while len(waiting) < ahead:
                try:
                    item = next(source)
                except StopIteration:
                    break
                waiting.append((item, workers.submit(function, item)))
            if not waiting:
                break
            item, future = waiting[0]
            try:
                result = future.result()
            except BrokenExecutor:
                if attempts == ATTEMPTS:
                    raise UserError(
                        f"a worker process died {ATTEMPTS} times while running job {item!r:.200} or one started with "
                        "it. The usual cause is too little memory (check with `dmesg`): try a smaller --nj."
                    ) from None
                attempts += 1
                workers.restart()
                # Results that were finished before the crash are kept; the other jobs run again.
                waiting = deque(
                    (again, old if _is_good(old) else workers.submit(function, again)) for again, old in waiting
                )
                continue
            waiting.popleft()
            attempts = 1
            yield item, result
        is_failed = False
    finally:
        workers.close(is_failed=is_failed)


def _is_good(future: object) -> bool:
    return isinstance(future, Future) and future.done() and not future.cancelled() and future.exception() is None


class _Local:
    """Local processes, started with spawn, because fork would copy locks held by threads of torch and BLAS."""

    def __init__(self, nj: int) -> None:
        self._nj = nj
        self._pool = self._start()

    def submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        try:
            return self._pool.submit(function, item)
        except BrokenExecutor as error:
            # A worker died between two submissions: handle it like a job that was running.
            future: Future[Result] = Future()
            future.set_exception(error)
            return future

    def restart(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._start()

    def close(self, *, is_failed: bool) -> None:
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=not is_failed, cancel_futures=True)
        if is_failed:
            for process in processes:
                process.terminate()

    def _start(self) -> ProcessPoolExecutor:
        return process_pool(self._nj)


class _Dask:
    """Workers of a Dask cluster. If a worker is lost, the scheduler gives its jobs to other workers."""

    def __init__(self, address: str | None) -> None:
        if address is None:
            raise UserError(
                "--executor dask needs --dask_address tcp://HOST:PORT, the address that `dask scheduler` prints"
            )
        distributed = import_optional("distributed", "--executor dask")
        try:
            from distributed.comm import get_address_host_port

            get_address_host_port(address, strict=False)  # a Client with an invalid address prints a traceback later
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UserError(
                f"can't connect to a Dask scheduler at {address} ({error or type(error).__name__})"
            ) from None
        if not self._client.scheduler_info()["workers"]:
            self._client.close()
            raise UserError(f"the Dask scheduler at {address} has no workers; start one with: dask worker {address}")

    def submit(self, function: Callable[[Item], Result], item: Item) -> _DaskResult[Result]:
        return _DaskResult(self._client, self._client.submit(function, item, pure=False, retries=ATTEMPTS - 1))

    def restart(self) -> None:
        raise AssertionError("the scheduler replaces a lost worker itself")

    def close(self, *, is_failed: bool) -> None:
        self._client.close()


class _DaskResult(Generic[Result]):
    """A future that explains failures of the cluster, and does not wait forever if there are no workers."""

    def __init__(self, client: Any, future: Any) -> None:
        self._client = client
        self._future = future

    def result(self) -> Result:
        import distributed

        alone_since: float | None = None
        while True:
            try:
                found: Result = self._future.result(timeout=1)
                return found
            except distributed.KilledWorker:
                raise UserError(
                    "several Dask workers died running the same job; the usual cause is too little memory"
                ) from None
            except (TimeoutError, distributed.TimeoutError):
                if self._future.status == "error":
                    raise
            except (CancelledError, distributed.client.FutureCancelledError, distributed.comm.CommClosedError):
                raise UserError(
                    "lost the connection to the Dask scheduler. Finished results are kept; run the command again."
                ) from None
            if self._client.scheduler_info()["workers"]:
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > NO_WORKERS_TIMEOUT_S:
                raise UserError(
                    "the Dask cluster has no workers left. Finished results are kept; run the command again."
                )


def _prepare_worker() -> None:
    """Prepare a worker: one thread, since there are `nj` workers, and Ctrl-C is handled by the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker if its parent is killed. It would wait for jobs forever: other workers keep the pipe open."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
