"""One function over many items, in processes of this machine or of a Dask cluster, in order and with a progress bar.

Jobs may be run again when a worker dies, so a job must leave its output whole or not at all (`atomic_write`): then
nothing is lost, and nothing is in the output twice.
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

Item = TypeVar("Item")
Result = TypeVar("Result")
Promised = TypeVar("Promised", covariant=True)

ATTEMPTS = 3
"""How often an item may be under way when a worker dies before it is given up."""
CONNECT_TIMEOUT_S = 10
NO_WORKERS_TIMEOUT_S = 300.0
"""How long a Dask cluster may be without a single worker before the work is given up."""


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
    """function(item) for each item, in the order of the items.

    `function` must be importable and the items picklable. With `nj` 1, local jobs run in this process. The progress
    bar counts items, or their weight (such as utterances a job). An exception ends the work and is raised here.
    """
    if nj < 1:
        raise UserError(f"--nj is {nj}, expected 1 or more")
    jobs = list(items) if not isinstance(items, Sized) else items
    total = sum(map(weight, jobs)) if weight else len(jobs)
    with tqdm(total=total, desc=description, unit=unit, dynamic_ncols=True, disable=None, file=sys.stderr) as bar:
        for item, result in _run(function, jobs, nj=nj, executor=executor, dask_address=dask_address):
            bar.update(weight(item) if weight else 1)
            yield result


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
        raise UserError(f"--executor is '{executor}', allowed: local, dask")
    elif nj == 1:
        for item in items:
            yield item, function(item)
        return
    else:
        workers = _Local(nj)
    yield from _in_order(workers, function, items, ahead=4 * nj)


class _Promise(Protocol[Promised]):
    """What is used of a future."""

    def result(self) -> Promised: ...


class _Workers(Protocol):
    def submit(self, function: Callable[[Item], Result], item: Item) -> _Promise[Result]: ...

    def restart(self) -> None: ...

    def close(self, *, is_failed: bool) -> None: ...


def _in_order(
    workers: _Workers, function: Callable[[Item], Result], items: Iterable[Item], *, ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Keep at most `ahead` jobs under way or waiting to be collected, so that a million items cost little memory."""
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
                        f"a worker process died {ATTEMPTS} times near job {item!r:.200}. "
                        "Too little memory is the usual cause (`dmesg` tells): try a smaller --nj."
                    ) from None
                attempts += 1
                workers.restart()
                # What was finished before the crash is kept; the rest is done anew.
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
    """Processes of this machine, started afresh (spawn): a fork would copy the threads' locks of torch and BLAS."""

    def __init__(self, nj: int) -> None:
        self._nj = nj
        self._pool = self._start()

    def submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        try:
            return self._pool.submit(function, item)
        except BrokenExecutor as error:
            # Broken between two submissions: collected and mended like a job that was under way.
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
        return ProcessPoolExecutor(self._nj, mp_context=spawn_context(), initializer=_prepare_worker)


class _Dask:
    """Workers of a Dask cluster. Its scheduler gives the jobs of a lost worker to others by itself."""

    def __init__(self, address: str | None) -> None:
        if address is None:
            raise UserError(
                "--executor dask needs --dask_address tcp://HOST:PORT, the address that `dask scheduler` prints"
            )
        try:
            import distributed
        except ImportError:
            raise UserError("--executor dask needs the package distributed: pip install 'tympan[cluster]'") from None
        try:
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UserError(f"no Dask scheduler answers at {address} ({error or type(error).__name__})") from None
        if not self._client.scheduler_info()["workers"]:
            self._client.close()
            raise UserError(f"the Dask scheduler at {address} has no workers; start some: dask worker {address}")

    def submit(self, function: Callable[[Item], Result], item: Item) -> _DaskResult[Result]:
        return _DaskResult(self._client, self._client.submit(function, item, pure=False, retries=ATTEMPTS - 1))

    def restart(self) -> None:
        raise AssertionError("the scheduler mends a lost worker itself")

    def close(self, *, is_failed: bool) -> None:
        self._client.close()


class _DaskResult(Generic[Result]):
    """A future that explains a cluster's failures, and does not wait for ever for a cluster without workers."""

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
                raise UserError("a job made several Dask workers die; too little memory is the usual cause") from None
            except (TimeoutError, distributed.TimeoutError):
                if self._future.status == "error":
                    raise
            except (CancelledError, distributed.client.FutureCancelledError, distributed.comm.CommClosedError):
                raise UserError("the Dask scheduler is gone. What was finished is kept; run it again.") from None
            if self._client.scheduler_info()["workers"]:
                alone_since = None
                continue
            alone_since = alone_since or time.monotonic()
            if time.monotonic() - alone_since > NO_WORKERS_TIMEOUT_S:
                raise UserError("the Dask cluster has no workers left. What was finished is kept; run it again.")


def _prepare_worker() -> None:
    """One thread a worker, as there are `nj` of them; Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for jobs for ever: each holds the pipe open for the others."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
