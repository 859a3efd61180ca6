"""Loads a server's datasets of programming problems from the folder that the flag `--datasets` names. The
folder has one subfolder for each grader, and in it one file for each dataset, with one problem (a JSON
object) per line:

    DIR/CommonOJDataset/sums.jsonl     the dataset `sums`, graded by CommonOJ
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from air import json_lines
from air.errors import ConfigError, MissingError
from air.serve.fusion.datasets.asserts import HumanEval, Mbpp
from air.serve.fusion.datasets.auto_eval import AutoEval
from air.serve.fusion.datasets.common_oj import CommonOJ
from air.serve.fusion.datasets.grader import Grader
from air.serve.fusion.datasets.messages import (
    DatasetRequest,
    GetPromptByIdRequest,
    GetPromptsRequest,
    Row,
    SubmitRequest,
)
from air.serve.fusion.programs import BadRequest, Programs

_GRADERS: tuple[type[Grader], ...] = (CommonOJ, AutoEval, Mbpp, HumanEval)


class Store:
    """The datasets of programming problems of one server, loaded from `folder`. The constructor raises
    MissingError if the folder does not exist, and ConfigError if a file in it is invalid."""

    def __init__(self, programs: Programs, folder: Path | None) -> None:
        self._graders = {name: kind(programs) for kind in _GRADERS for name in kind.names}
        self._rows: dict[str, list[Row]] = {}
        self._grader_of: dict[str, Grader] = {}
        if folder is not None:
            self._load(folder)

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets that the server has, sorted."""
        return sorted(self._rows)

    def grader(self, request: DatasetRequest) -> Grader:
        """Returns the grader for the dataset that a request names. If the server does not have this dataset,
        `config.dataset_type` must name the grader; otherwise, raises BadRequest."""
        if known := self._grader_of.get(request.dataset):
            return known
        name = request.config.dataset_type
        if name is None:
            raise BadRequest(f"no eval class found for dataset {request.dataset}", "dataset", 400)
        if name not in self._graders:
            raise BadRequest(
                f"eval class {name} not found; there are {', '.join(self._graders)}", "config", 400
            )
        return self._graders[name]

    def rows(self, request: GetPromptsRequest) -> list[Row]:
        """Returns the problems (rows) that a request selects by `offset` and `limit`. They come from the
        server's dataset or, if given, from `config.provided_data`. Raises BadRequest if the dataset does not
        exist."""
        given = request.config.provided_data
        if given is not None and not isinstance(given, list):
            raise BadRequest("config.provided_data must be a list of rows here", "config", 400)
        rows = given if given is not None else self._table(request)
        return rows[request.offset : request.offset + request.limit]

    def row(self, request: GetPromptByIdRequest | SubmitRequest) -> Row:
        """Returns the problem (row) in the request's `config.provided_data` or, if that is absent, the
        problem of the server's dataset with the request's id. Raises BadRequest (status 404) if the dataset
        or the problem does not exist."""
        given = request.config.provided_data
        if isinstance(given, dict):
            return given
        if given is not None:
            raise BadRequest("config.provided_data must be one row here", "config", 400)
        grader = self.grader(request)
        for row in self._table(request):
            if str(grader.id_of(row)) == str(request.id):
                return row
        raise BadRequest(f"dataset {request.dataset} has no problem {request.id}", "id", 404)

    def _table(self, request: DatasetRequest) -> list[Row]:
        if request.dataset not in self._rows:
            raise BadRequest(f"the server has no dataset {request.dataset}", "dataset", 404)
        return self._rows[request.dataset]

    def _load(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MissingError("no such folder", where=str(folder), remedy="check --datasets")
        for file in sorted(folder.glob("*/*.jsonl")):
            if file.parent.name not in self._graders:
                raise ConfigError(
                    f"no grader {file.parent.name}",
                    where=str(file.parent),
                    remedy=f"name the folder {', '.join(self._graders)}",
                )
            grader = self._graders[file.parent.name]
            self._grader_of[file.stem] = grader
            self._rows[file.stem] = list(_read(file, grader))


def _read(file: Path, grader: Grader) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json_lines.decode(line)
            grader.id_of(row)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"not a problem: {error!r}", where=f"{file}:{number}", remedy="see docs/serve.md"
            ) from None
        yield row
