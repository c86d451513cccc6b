"""Problems streamed from the Hugging Face hub, or from a local folder in a dataset repository's layout."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from oar_lightning.common.messages import one_line
from oar_lightning.common.ranges import PositiveInt, checked
from oar_lightning.data.rows import Columns, Row, as_texts, is_plain, problems_of, table_rows
from oar_lightning.types import MathProblem

log = logging.getLogger(__name__)


@checked("")
class HubProblems:
    """All usable rows of a split, streamed: memory holds at most the shuffle buffer. The dataset is opened when first read.

    Args:
        path: a hub id (``openai/gsm8k``) or a local folder of parquet, JSONL or CSV files.
        name: the dataset's configuration; null for its only one.
        split: the dataset's split.
        revision: branch, tag or commit; null for the newest.
        shuffle_buffer: an epoch's order draws from a window of so many rows, after its files are shuffled.
        question_column, answer_column, solution_column, level_column, id_column, extra_columns: see `Columns`.
        limit: use the first so many rows of the split; null for all.

    A row without a question or a gold answer is dropped and counted in ``dropped`` by reason. The counts are those of the
    longest read so far, and are reported when a read ends.

    Raises:
        ValueError: for a revision of a folder; when first read, where the dataset cannot be reached, lacks a column, or has
            no usable row.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        split: str = "train",
        revision: str | None = None,
        shuffle_buffer: PositiveInt = 10000,
        question_column: str = "problem",
        answer_column: str | None = "answer",
        solution_column: str | None = "solution",
        level_column: str | None = None,
        id_column: str | None = None,
        limit: PositiveInt | Annotated[None, "all"] = None,
        extra_columns: str | Sequence[str] | None = None,
    ) -> None:
        self.path = str(Path(path).expanduser()) if path.startswith("~") else path
        if revision is not None and self._local():
            raise ValueError(f"revision={revision}: path={path} is a folder, and revisions are the hub's; leave revision out")
        self.name = name
        self.split = split
        self.revision = revision
        self.shuffle_buffer = shuffle_buffer
        self.columns = Columns(question_column, answer_column, solution_column, level_column, id_column, extra_columns)
        self.limit = limit
        self.dropped: Counter[str] = Counter()
        self._dataset: Any = None

    def __iter__(self) -> Iterator[MathProblem]:
        return self._pass(lambda dataset: dataset)

    def shuffled(self, seed: int, epoch: int, start: int = 0) -> Iterator[MathProblem]:
        def order(dataset: Any) -> Any:
            dataset = dataset.shuffle(seed=seed, buffer_size=self.shuffle_buffer)
            dataset.set_epoch(epoch)
            return dataset

        # read again and skipped: the library's own state leaves out the rows that wait in the buffer, which would be lost
        return islice(self._pass(order), start, None)

    def _pass(self, order: Any) -> Iterator[MathProblem]:
        dropped: Counter[str] = Counter()
        kept = 0
        try:
            for problem in problems_of(self._rows(order), self.columns, self.path, dropped):
                kept += 1
                yield problem
        finally:
            if dropped.total() > self.dropped.total():
                self.dropped = dropped
                log.warning("data: %s; kept %d rows of %s", dict(dropped), kept, self._called())
        if not kept:
            raise ValueError(f"{self._called()} has no usable row ({dict(dropped) or 'it is empty'})")

    def _rows(self, order: Any) -> Iterator[tuple[str, Row]]:
        try:
            for row in table_rows(order(self._opened())):
                yield f"{self.path}/{self.split}:{_digest(row)}", row
        except Exception as error:  # the library raises whatever its transport and its readers do
            raise ValueError(
                f"{self._called()} cannot be read ({type(error).__name__}: {one_line(error)}); {self._remedy()}"
            ) from error

    def _opened(self) -> Any:
        if self._dataset is None:
            from datasets import get_dataset_config_names, load_dataset, load_dataset_builder

            name = self.name
            reach = contextlib.nullcontext() if self._local() or _answers(self.path, self.revision) else _offline()
            if name is not None and self._local() and get_dataset_config_names(self.path) == ["default"]:
                log.info("path=%s: bare files without configurations, so name=%s chooses nothing", self.path, name)
                name = None
            load = functools.partial(load_dataset, self.path, name, split=self.split, revision=self.revision, streaming=True)
            with reach:
                dataset = load()
                if dataset.info.builder_name == "csv":
                    builder = load_dataset_builder(self.path, name, revision=self.revision)
                    dataset = load(**as_texts(_columns(builder, self.split, all_files=self._local())))
            self._dataset = dataset if self.limit is None else dataset.take(self.limit)
        return self._dataset

    def _local(self) -> bool:
        return Path(self.path).is_dir()

    def _called(self) -> str:
        return f"path={self.path} (name={self.name or 'null'}, split={self.split})"

    def _remedy(self) -> str:
        if self._local():
            return "is it a folder of parquet, JSONL or CSV files that has this split? set path, name and split"
        columns = {"question": self.columns.question, "answer": self.columns.answer, "solution": self.columns.solution}
        settings = " ".join(f"data.train.{field}_column={column or 'null'}" for field, column in columns.items())
        return (
            "where the hub cannot be reached, download it elsewhere and set path to its folder, or name its files: "
            f"data=files data.train.paths=<files> {settings} (for evaluation: data.evaluation.test.paths=<files>, ...)"
        )


def _answers(path: str, revision: str | None) -> bool:
    """Whether the hub answers, be it with an error. The libraries would ask for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(path, revision=revision, timeout=10)
    except HfHubHTTPError as error:
        return error.response is not None
    except Exception:  # of the transport, whichever that is
        return False
    return True


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """The libraries' offline mode for a block: only what is cached is found, and nobody is asked."""
    from datasets import config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def _columns(builder: Any, split: str, all_files: bool) -> list[str]:
    """The columns of a split of CSV files, read with the set's own separator, encoding, ...

    `all_files`: look into each of them, and not into the first alone, since each is a request where they are not here.

    Raises:
        ValueError: for a file whose cells would be those of other columns.
    """
    splits = builder.config.data_files
    files = splits.get(re.split(r"[\[+]", split)[0]) or next(iter(splits.values()))
    options = builder.config.pd_read_csv_kwargs | {"chunksize": None}
    first, *_ = [_csv_columns(file, options) for file in (files if all_files else files[:1])]
    return first


def _csv_columns(file: str, options: dict[str, Any]) -> list[str]:
    import fsspec
    import pandas

    named_here = options.get("header") == "infer" and options.get("names") is None
    with fsspec.open(file, "rb", compression="infer") as opened:
        first = pandas.read_csv(opened, **options | {"nrows": 1})
        opened.seek(0)
        line = (
            pandas.read_csv(opened, **options | {"nrows": 1, "header": None, "keep_default_na": False}) if named_here else None
        )
    columns = [str(column) for column in first.columns]
    if options.get("index_col") is None and not isinstance(first.index, pandas.RangeIndex):  # pandas has shifted the cells
        raise ValueError(f"{file} has more cells in its first row than its {len(columns)} columns {columns}")
    named = [] if line is None else [str(name) for name in line.iloc[0] if name != ""]
    if len(set(named)) < len(named):
        raise ValueError(f"{file} names a column twice in its first line {named}")
    return columns


def _digest(row: Row) -> str:
    """A row's id from its content: its number would change with each epoch's order. What JSON does not hold is left out, for it
    may be shown by its place in memory."""
    content = {name: value for name, value in row.items() if is_plain(value)}
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
