"""Changed rules are noticed however they are changed; bad ones never replace good ones."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.loading import Loading
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.sources.files import RulesFiles

Story = Callable[["Watched"], Awaitable[None]]

SECONDS = 60
"""Until a story gives up waiting."""


def rules(requests: int, domain: str = "shop") -> str:
    return f"domain: {domain}\ndescriptors: [{{key: user, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]\n"


class Watched:
    """Rules files that are followed, and what comes of it."""

    def __init__(self, folder: Path, quiet_seconds: float = 0.01) -> None:
        self.folder = folder
        self.books: asyncio.Queue[RuleBook] = asyncio.Queue()
        self.files = RulesFiles(folder, poll_seconds=0.01, quiet_seconds=quiet_seconds)
        self.loading = Loading([self.files], parse, self.books.put_nowait)

    def write(self, text: str, name: str = "shop.yaml") -> None:
        (self.folder / name).write_text(text)

    async def limits(self) -> dict[str, int]:
        """Of the next book: the limit of each domain."""
        book = await asyncio.wait_for(self.books.get(), SECONDS)
        return {rule.domain: rule.limit.requests for rule in book.rules if rule.limit is not None}

    async def refusal(self, failures: int) -> str:
        """What was wrong, once so many loads have failed."""
        async with asyncio.timeout(SECONDS):
            while self.loading.failures < failures:  # noqa: ASYNC110  # a refusal is told to nobody
                await asyncio.sleep(0.001)
        return "\n".join(map(str, self.loading.problems)).replace(str(self.folder), "…")


def play(folder: Path, story: Story, quiet_seconds: float = 0.01) -> Watched:
    """Load, then watch while the story happens."""

    async def run() -> Watched:
        watched = Watched(folder, quiet_seconds)
        await watched.loading.load()
        following = asyncio.create_task(watched.loading.run())
        await story(watched)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return watched

    return asyncio.run(run())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(rules(1))
    return tmp_path


def test_what_is_there_at_the_start_is_loaded(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        assert await watched.limits() == {"shop": 1}

    assert play(folder, story).loading.successes == 1


@pytest.mark.parametrize(
    ("unit", "end"), [("day", ", 1 file"), ("month", ", 1 file, 1 warning: see `ratelimit check`")]
)
def test_how_many_warnings_there_are_is_told_in_the_line_of_a_load(
    folder: Path, caplog: pytest.LogCaptureFixture, unit: str, end: str
) -> None:
    (folder / "shop.yaml").write_text(rules(1).replace("day", unit))

    async def story(watched: Watched) -> None:
        await watched.limits()

    with caplog.at_level(logging.INFO):
        play(folder, story)

    assert [record.getMessage().endswith(end) for record in caplog.records] == [True]


def test_limits_that_regions_do_not_share_as_they_say_are_told_of_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split = rules(1).replace("1}", "2, regions: split}")
    (folder / "shop.yaml").write_text(split)
    (folder / "mail.yaml").write_text(split.replace("shop", "mail"))

    async def story(watched: Watched) -> None:
        await watched.limits()

    with caplog.at_level(logging.WARNING):
        play(folder, story)

    (record,) = caplog.records
    assert record.getMessage().startswith(f"{folder}/mail.yaml:2:27: regions has no effect on this limit and 1 other: ")


def test_a_file_written_in_place_is_loaded(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        watched.write(rules(2))
        assert await watched.limits() == {"shop": 2}

    play(folder, story)


def test_a_file_renamed_into_place_is_loaded_even_if_it_is_as_old_and_as_large(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        before = (folder / "shop.yaml").stat()
        watched.write(rules(2), ".shop.yaml.new")
        os.utime(folder / ".shop.yaml.new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (folder / ".shop.yaml.new").rename(folder / "shop.yaml")
        assert await watched.limits() == {"shop": 2}

    play(folder, story)


def test_new_and_removed_files_and_sub_folders_are_noticed(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        (folder / "more").mkdir()
        watched.write(rules(3, "api"), "more/api.yml")
        assert await watched.limits() == {"shop": 1, "api": 3}
        (folder / "shop.yaml").unlink()
        assert await watched.limits() == {"api": 3}

    play(folder, story)


def test_a_config_map_is_read_once_and_its_swap_is_noticed(tmp_path: Path) -> None:
    # As the kubelet lays a volume out: versions in dot folders, ..data pointing at one, a link for each file.
    def publish(version: str, text: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "shop.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("..2026_01", rules(1))
    (tmp_path / "shop.yaml").symlink_to("..data/shop.yaml")

    async def story(watched: Watched) -> None:
        assert await watched.limits() == {"shop": 1}
        publish("..2026_02", rules(2))
        assert await watched.limits() == {"shop": 2}

    play(tmp_path, story)


def test_a_bad_file_leaves_the_old_rules_and_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        book = watched.loading.book
        watched.write(rules(2).replace("day", "fortnight"))
        assert await watched.refusal(1) == (
            '…/shop.yaml:2:46: unit "fortnight" is not one of second, minute, hour, day, week, month, year'
        )
        assert watched.loading.book is book
        watched.write(rules(3))
        assert await watched.limits() == {"shop": 3}

    with caplog.at_level(logging.INFO, "ratelimit_service.rules.loading"):
        loading = play(folder, story).loading

    assert (loading.successes, loading.failures, loading.problems) == (2, 1, ())
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "INFO"]


def test_all_files_are_loaded_or_none(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        watched.write("domain: [", "broken.yaml")
        await watched.refusal(1)
        watched.write(rules(2))
        await watched.refusal(2)
        assert watched.books.empty()
        (folder / "broken.yaml").unlink()
        assert await watched.limits() == {"shop": 2}

    play(folder, story)


def test_an_emptied_folder_leaves_the_old_rules(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        (folder / "shop.yaml").unlink()
        assert await watched.refusal(1) == "…: has no *.yaml or *.yml file"
        assert watched.loading.book is not None

    play(folder, story)


def test_a_folder_that_goes_away_leaves_the_old_rules(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "shop.yaml").write_text(rules(1))

    async def story(watched: Watched) -> None:
        await watched.limits()
        folder.rename(tmp_path / "away")
        assert await watched.refusal(1) == "…: cannot be read: no such file or directory"
        (tmp_path / "away").rename(folder)
        assert await watched.limits() == {"shop": 1}

    play(folder, story)


def test_an_unreadable_file_leaves_the_old_rules(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        # Unreadable for root too: a link that leads to itself.
        (folder / "loop.yaml").symlink_to("loop.yaml")
        assert await watched.refusal(1) == "…/loop.yaml: cannot be read: too many levels of symbolic links"
        assert watched.loading.book is not None

    play(folder, story)


def test_a_folder_within_itself_is_read_once(folder: Path) -> None:
    (folder / "again").symlink_to(folder)

    async def story(watched: Watched) -> None:
        assert await watched.limits() == {"shop": 1}

    play(folder, story)


def test_a_file_too_large_for_rules_is_refused_unread(folder: Path) -> None:
    with (folder / "huge.yaml").open("wb") as huge:
        huge.truncate(100 * 2**20)

    async def story(watched: Watched) -> None:
        assert await watched.refusal(1) == "…/huge.yaml: is larger than 16 MiB; split it"

    play(folder, story)


def test_a_book_that_was_asked_for_is_loaded_though_nothing_changed(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.limits()
        watched.loading.reload()
        assert await watched.limits() == {"shop": 1}

    assert play(folder, story).loading.successes == 2


def test_the_version_tells_files_from_others_and_is_the_same_for_the_same_ones(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        versions = []
        for requests in (1, 2, 1):
            watched.write(rules(requests))
            watched.loading.reload()
            while (await watched.limits()) != {"shop": requests}:
                pass
            versions.append(watched.loading.feeds[0].version)
        assert versions[0] == versions[2] != versions[1]

    play(folder, story)


def test_tallies_outlive_a_reload(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        before = await asyncio.wait_for(watched.books.get(), SECONDS)
        before.rules[0].tally.total_hits = 7
        watched.write(rules(2))
        after = await asyncio.wait_for(watched.books.get(), SECONDS)
        assert after.rules[0].tally.total_hits == 7

    play(folder, story)
