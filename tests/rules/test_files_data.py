"""Data files are watched with the rules that name them; bad ones never replace good ones."""

import asyncio
import os
from pathlib import Path

import pytest

from ratelimit_service.rules.sources.data_reads import DataRead, DataReads, reread
from ratelimit_service.rules.sources.files import FoundFiles, RulesFiles
from ratelimit_service.rules.sources.yaml_text import YamlText
from tests.rules.test_files import SECONDS, Watched, play

RULES = """\
domain: shop
lookup: {from: FILE, key: api_key, as: tier}
descriptors: [{key: tier, value: pro, rate_limit: {unit: day, requests_per_unit: 1}}]
"""


async def names(watched: Watched) -> dict[str, str]:
    """What the next book looks up."""
    book = await asyncio.wait_for(watched.books.get(), SECONDS)
    return dict(book.domains["shop"].lookups["api_key"].names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "shop.yaml").write_text(RULES.replace("FILE", "keys.csv"))
    (rules / "keys.csv").write_text("k-1,pro\n")
    return rules


def test_a_data_file_written_in_place_is_loaded_though_the_rules_are_the_same(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        assert await names(watched) == {"k-1": "pro"}
        watched.write("k-1,pro\nk-2,pro\n", "keys.csv")
        assert await names(watched) == {"k-1": "pro", "k-2": "pro"}

    assert play(folder, story).loading.failures == 0


def test_a_list_of_values_follows_its_file(folder: Path) -> None:
    rules = (
        "domain: shop\ndescriptors: [{key: ip, values_from: ips.txt, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
    )
    (folder / "shop.yaml").write_text(rules)
    (folder / "ips.txt").write_text("10.0.0.1\n")

    async def matched(watched: Watched) -> list[bool]:
        book = await asyncio.wait_for(watched.books.get(), SECONDS)
        return [book.match("shop", (("ip", address),)) is not None for address in ("10.0.0.1", "10.0.0.2")]

    async def story(watched: Watched) -> None:
        assert await matched(watched) == [True, False]
        watched.write("10.0.0.2\n", "ips.txt")
        assert await matched(watched) == [False, True]

    assert play(folder, story).loading.failures == 0


def test_one_renamed_into_place_is_loaded_even_if_it_is_as_old_and_as_large(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        before = (folder / "keys.csv").stat()
        watched.write("k-2,pro\n", ".new")
        os.utime(folder / ".new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (folder / ".new").rename(folder / "keys.csv")
        assert await names(watched) == {"k-2": "pro"}

    play(folder, story)


def test_half_of_a_list_that_is_written_in_place_is_not_taken_and_a_renamed_one_is(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        watched.write("k-1,pro\nk-2,p", "keys.csv")
        await asyncio.sleep(0.1)  # some polls
        assert watched.loading.successes == 1
        watched.write("k-1,pro\nk-2,pro\n", ".new")
        (folder / ".new").rename(folder / "keys.csv")
        assert await names(watched) == {"k-1": "pro", "k-2": "pro"}

    assert play(folder, story, quiet_seconds=3600).loading.failures == 0


def test_a_request_to_reload_takes_a_list_as_it_is(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        watched.write("k-2,pro\n", "keys.csv")
        watched.loading.reload()
        assert await names(watched) == {"k-2": "pro"}

    play(folder, story, quiet_seconds=3600)


OLD = DataRead(b"a\n", None, (1, 1))


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (OLD, 0.1),
        (DataRead(b"a\nb\n", None, (1, 2)), 0.1),  # renamed into place
        (DataRead(b"a\nb\n", None, (1, 1)), 2.0),
        (DataRead(b"a\nb", None, (1, 1)), 6.0),
        (DataRead(b"", None, (1, 1)), 2.0),
        (DataRead("no such file", None), 0.1),
    ],
)
def test_what_is_written_in_place_must_not_change_for_a_while_and_longer_if_its_last_line_has_no_end(
    data: DataRead, seconds: float
) -> None:
    files = RulesFiles(Path("/rules"), poll_seconds=2.0)
    files._seen = FoundFiles([], {"/keys": OLD})

    assert files._unchanged_for(FoundFiles([], {"/keys": data})) == seconds


@pytest.mark.parametrize(
    ("text", "inode", "seconds"), [(b"a", 1, 0.1), (b"b", 2, 0.1), (b"b", 1, 2.0)], ids=["same", "renamed", "in place"]
)
def test_rules_that_are_written_in_place_must_not_change_for_a_poll(text: bytes, inode: int, seconds: float) -> None:
    files = RulesFiles(Path("/rules"), poll_seconds=2.0)
    files._seen = FoundFiles([YamlText("/rules/a.yaml", b"a")], {}, {"/rules/a.yaml": (1, 1)})

    found = FoundFiles([YamlText("/rules/a.yaml", text)], {}, {"/rules/a.yaml": (1, inode)})
    assert files._unchanged_for(found) == seconds
    new = FoundFiles([YamlText("/rules/b.yaml", text)], {}, {"/rules/b.yaml": (1, inode)})
    assert files._unchanged_for(new) == 2.0


def test_files_that_never_rest_are_a_failed_load(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        watched.write("k-1,pro\n", "keys.csv")
        watched.write("k-2,pro\n", "keys.csv")
        async with asyncio.timeout(SECONDS):
            while (changing := watched.files._changing) is None:  # noqa: ASYNC110  # a poll is told to nobody
                await asyncio.sleep(0.001)
        watched.files._changing = changing._replace(began=changing.began - 61)
        watched.write("k-3,pro\n", "keys.csv")
        told = await watched.refusal(1)
        assert told.endswith("has files that change again and again for 60 s: write them aside, and rename")
        watched.loading.reload()
        assert await names(watched) == {"k-3": "pro"}

    play(folder, story, quiet_seconds=3600)


@pytest.mark.parametrize("file", ["../lists/keys", "ABSOLUTE/lists/keys"])
def test_one_outside_of_the_folder_is_watched(folder: Path, file: str) -> None:
    (folder.parent / "lists").mkdir()
    keys = folder.parent / "lists" / "keys"
    keys.write_text("k-1,pro\n")
    (folder / "shop.yaml").write_text(RULES.replace("FILE", file.replace("ABSOLUTE", str(folder.parent))))

    async def story(watched: Watched) -> None:
        assert await names(watched) == {"k-1": "pro"}
        keys.write_text("k-2,pro\n")
        assert await names(watched) == {"k-2": "pro"}

    play(folder, story)


def test_a_config_map_with_rules_and_data_is_swapped_as_a_whole(tmp_path: Path) -> None:
    def publish(version: str, keys: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "shop.yaml").write_text(RULES.replace("FILE", "keys.csv"))
        (tmp_path / version / "keys.csv").write_text(keys)
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("..2026_01", "k-1,pro\n")
    for name in ("shop.yaml", "keys.csv"):
        (tmp_path / name).symlink_to(f"..data/{name}")

    async def story(watched: Watched) -> None:
        assert await names(watched) == {"k-1": "pro"}
        publish("..2026_02", "k-2,pro\n")
        assert await names(watched) == {"k-2": "pro"}

    play(tmp_path, story)


def test_one_that_vanishes_leaves_the_old_list_and_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        (folder / "keys.csv").unlink()
        told = await watched.refusal(1)
        assert told == '…/shop.yaml:2:16: from "…/keys.csv" cannot be read: no such file or directory'
        await asyncio.sleep(0.1)  # some polls
        assert watched.loading.failures == 1
        assert watched.loading.book is not None
        assert list(watched.loading.book.data) == [f"{folder}/keys.csv"]
        watched.write("k-3,pro\n", "keys.csv")
        assert await names(watched) == {"k-3": "pro"}
        assert watched.loading.problems == ()

    play(folder, story)

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "rules not loaded, the old rules stay"
    ]


def test_one_that_comes_back_as_it_was_is_loaded_again(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        (folder / "keys.csv").rename(folder / "away")
        await watched.refusal(1)
        (folder / "away").rename(folder / "keys.csv")
        assert await names(watched) == {"k-1": "pro"}

    assert play(folder, story).loading.problems == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("k-1,pro\nk-1,free\n", "…/keys.csv:2:1: the value is given twice, first in line 1, with different names"),
        ("k-1,pro\nk-2\n", "…/keys.csv:2:1: the line has no name, and the lookup at …/shop.yaml:2:9 needs one"),
        ("k-1,pro,\n", "…/keys.csv:1:9: a line is value or value,name"),
    ],
)
def test_one_that_is_malformed_leaves_the_old_list(folder: Path, text: str, told: str) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        watched.write(text, "keys.csv")
        assert (await watched.refusal(1)).startswith(told)
        watched.write("k-3,pro\n", "keys.csv")
        assert await names(watched) == {"k-3": "pro"}

    play(folder, story)


def test_one_that_is_no_regular_file_leaves_the_old_list(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        (folder / "keys.csv").unlink()
        os.mkfifo(folder / "keys.csv")
        assert "cannot be read: it is a pipe, and only regular files are read" in await watched.refusal(1)

    play(folder, story)


def test_one_that_is_missing_at_the_start_is_loaded_when_it_comes(folder: Path) -> None:
    (folder / "keys.csv").unlink()

    async def story(watched: Watched) -> None:
        await watched.refusal(1)
        watched.write("k-1,pro\n", "keys.csv")
        assert await names(watched) == {"k-1": "pro"}

    assert play(folder, story).loading.failures == 1


def test_one_that_is_no_longer_named_is_no_longer_watched(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        watched.write("k-2,pro\n", "other.csv")
        watched.write(RULES.replace("FILE", "other.csv"))
        assert await names(watched) == {"k-2": "pro"}
        (folder / "keys.csv").unlink()
        await asyncio.sleep(0.1)  # some polls
        watched.write("k-3,pro\n", "other.csv")
        assert await names(watched) == {"k-3": "pro"}

    assert play(folder, story).loading.failures == 0


def test_a_new_time_of_change_alone_loads_nothing(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        await names(watched)
        os.utime(folder / "keys.csv", (1, 1))
        await asyncio.sleep(0.2)  # some polls
        watched.write("k-2,pro\n", "keys.csv")
        assert await names(watched) == {"k-2": "pro"}

    assert play(folder, story).loading.successes == 2


def test_a_change_of_the_rules_takes_over_the_list_as_it_is(folder: Path) -> None:
    async def story(watched: Watched) -> None:
        old = await asyncio.wait_for(watched.books.get(), SECONDS)
        watched.write(RULES.replace("FILE", "keys.csv").replace("1}", "2}"))
        new = await asyncio.wait_for(watched.books.get(), SECONDS)
        assert old.data == new.data

    play(folder, story)


def settled(path: Path) -> None:
    """Its last change is long ago."""
    os.utime(path, (1, 1))


def test_a_file_is_read_again_only_when_its_stat_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("a")
    settled(path)
    first = reread(str(path))
    again = reread(str(path), first)
    path.write_text("b")
    settled(path)

    assert again is first
    assert reread(str(path), first).contents == b"b"


def test_a_file_changed_a_moment_ago_is_read_again_because_the_clock_of_files_is_coarse(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("a")
    before = path.stat()
    first = reread(str(path))
    with path.open("r+") as file:
        file.write("b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert first.signature is None
    assert reread(str(path), first) != first


def test_the_bytes_are_kept_while_they_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("a" * 100)
    first = reread(str(path))
    os.utime(path, (1, 1))
    second = reread(str(path), first)

    assert second.contents is first.contents
    assert second.signature is not None


def test_a_load_takes_what_the_poll_has_found_and_reads_what_is_new(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("b")
    found = {"/old": DataRead(b"a", None), "/unused": DataRead(b"", None), "/gone": DataRead("no such file", None)}
    reads = DataReads(found, 60)

    assert reads.read("/old") == b"a"
    assert reads.read(str(tmp_path / "new")) == b"b"
    with pytest.raises(OSError, match="no such file"):
        reads.read("/gone")
    assert list(reads.asked) == ["/old", str(tmp_path / "new"), "/gone"]
