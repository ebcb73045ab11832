"""A catalog and a folder go in; every row group of the curriculum, decoded into files of that folder, comes out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cleanfeed.errors import CleanfeedError
from cleanfeed.feed.catalog import Catalog
from cleanfeed.feed.decoded_files import DecodedFiles, cannot_write, decoded_bytes
from cleanfeed.feed.pages import Files


def decode_all(catalog: Catalog, folder: str, threads: int, *, progress: bool) -> int:
    """Decode what is not there yet, prove what is, and return the bytes of all of it.

    Args:
        catalog: What the manifest says.
        folder: For decoded row groups of any number of curricula.
        threads: Files of the curriculum that are decoded at a time.
        progress: Show on stderr how far it is, and first the bytes needed and free.

    Raises:
        CleanfeedError: The folder cannot be written to.
        CurriculumError: A row group is not what was written.
    """
    files = catalog.file_groups()
    # Processes that begin at once begin at different files, and find what the others have done.
    first = os.getpid() % len(files)
    done = _decoded(catalog, folder, threads, files[first:] + files[:first])
    return sum(_shown(done, catalog, folder, len(files)) if progress else done)


def _decoded(catalog: Catalog, folder: str, threads: int, files: list[range]) -> Iterator[int]:
    """Yield the bytes of the row groups of each file when they are there."""
    kept = DecodedFiles(folder, catalog)

    def of_file(numbers: range) -> int:
        # Its own, for a ParquetFile is not for two threads.
        own = Files(catalog, "input_ids")
        return sum(_decoded_group(own, kept, catalog, number) for number in numbers)

    pool = ThreadPoolExecutor(threads)
    try:
        yield from pool.map(of_file, files)
    except OSError as error:
        raise CleanfeedError(cannot_write(kept.folder, error)) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded_group(files: Files, kept: DecodedFiles, catalog: Catalog, number: int) -> int:
    place = catalog.row_group(number)
    if kept.load(place) is None:
        kept.write(place, files.ragged(place))
    return os.stat(kept.path(place)).st_size  # noqa: PTH116


def _shown(done: Iterator[int], catalog: Catalog, folder: str, files: int) -> Iterator[int]:
    # Imported where it is used: whoever trains has no need of it.
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import track

    there = next(parent for parent in (Path(folder), *Path(folder).parents) if parent.exists())
    console = Console(stderr=True)
    sizes = f"at most {decimal(decoded_bytes(catalog))}, {decimal(shutil.disk_usage(there).free)} free"
    console.print(f"decoding into {folder}: {sizes}", soft_wrap=True)
    yield from track(done, "decoding", files, console=console)
