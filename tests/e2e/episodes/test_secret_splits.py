"""Episodes on secret splits: the source code tells nothing, records hold no secret, replays agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from air import tasks
from air.env.config import ResearchEnvConfig
from air.errors import ConfigError
from air.manual.session import ManualEpisode, recorded_config
from air.replay.options import ReplayOptions
from air.replay.regrade import rescore
from air.replay.replayer import Replayer
from air.tasks.data import prepare
from air.tasks.splits import VARIABLE, Splits
from air.testing import replies
from air.trajectories import load, trajectory_files
from tests.e2e.conftest import attempt, played_by, research

SECRET = "the secret of a run"


def rebuilt() -> str:
    """The reply of an agent that rebuilt the public split from the source code: hidden labels by heart."""
    data = prepare(tasks.load("titanic")).grader / "data"
    rows = [
        line
        for split in ("val", "test")
        for line in (data / f"{split}.csv").read_text().split()[1:]
    ]
    text = "\n".join(["id,survived", *rows])
    return f"I know.\n```bash\ncat > submission.csv <<'END'\n{text}\nEND\nvalidate\n```"


async def test_the_public_seed_tells_nothing_about_an_episodes_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {}
    for setting in ("public", SECRET):
        folder = tmp_path / setting[:6]
        config = research(["titanic"], "subprocess", split_seed=setting, record_dir=folder)
        async with played_by(replies(rebuilt(), attempt(4, 2, "submit")), config) as play:
            episode = await play()
        (path,) = trajectory_files(folder)
        scores[setting] = [one.score for one in load(path).validations]
    assert scores["public"] == [1.0, 0.8166666666666667]  # the recorded score
    assert scores[SECRET][0] is not None
    assert scores[SECRET][0] < 0.7

    one = load(path)
    assert one.start is not None
    assert one.start.baseline is not None
    assert one.start.split == Splits(SECRET).name
    assert one.start.baseline != tasks.load("titanic").baseline
    assert one.start.scale["baseline"] == one.start.baseline
    assert f"baseline {one.start.baseline:.4g}" in one.start.prompt
    assert episode.traces[0].info["air"]["baseline"] == one.start.baseline
    assert f"baseline {one.start.baseline:.4g}" in str(episode.traces[0].task.data.prompt)
    secrets = SECRET.encode(), str(Splits(SECRET).of("titanic").seed).encode()
    for file in (file for file in folder.rglob("*") if file.is_file()):
        assert not any(secret in file.read_bytes() for secret in secrets), file

    async with Replayer(ReplayOptions()) as replayer:
        with pytest.raises(ConfigError, match=f"secret split {one.start.split}"):
            await replayer.replay(one)
        monkeypatch.setenv(VARIABLE, SECRET)
        played = await replayer.replay(one)
        assert (played.differences, played.equal_scores) == ([], 3)
        graded = await rescore(one, replayer.grader_of(one), {}, ReplayOptions())
        assert (graded.differences, graded.reward) == ([], one.end.reward if one.end else None)

    monkeypatch.setenv(VARIABLE, "public")
    with pytest.raises(ConfigError, match=f"secret split {one.start.split}"):
        recorded_config(one)
    monkeypatch.setenv(VARIABLE, SECRET)
    again = ResearchEnvConfig.model_validate(recorded_config(one))
    async with ManualEpisode(again, origin=(one, 1)) as session:
        world = session.episode.world
        assert (world.task.split.name, world.task.baseline) == (one.start.split, one.start.baseline)
        lines = await session.act(attempt(4, 2, "submit"))
    assert [line["score"] for line in lines if line["type"] == "validate"] == scores[SECRET][1:]
