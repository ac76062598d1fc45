"""`ratelimit init` writes a first rules file, which limits as it says."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ratelimit_service.cli import main
from tests.processes import start_service


def init(*words: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *words], input=answers)


@pytest.mark.parametrize("answers", [None, "\n\n5\nday\nn\ny\nuser\nplan\n3\nday\ny\nn\n"])
def test_what_is_written_passes_check_and_limits_what_it_says_to_call(tmp_path: Path, answers: str | None) -> None:
    file = tmp_path / "my rules" / "first.yaml"
    written = init(str(file), *(["--example"] if answers is None else []), answers=answers)
    checked = CliRunner().invoke(main, ["check", str(file.parent)])
    serve, call = (shlex.split(line) for line in written.stdout.splitlines()[-2:])
    with start_service(tmp_path / "service", Path(serve[-1])) as service:
        called = CliRunner().invoke(main, ["call", f"localhost:{service.grpc_port}", *call[3:]])

    assert written.exit_code == 0
    assert (checked.exit_code, checked.stderr) == (0, "")
    assert checked.stdout.startswith("3 rules in 1 domain" if answers is None else "2 rules in 1 domain")
    assert serve[:3] == ["ratelimit", "serve", "--rules"]
    assert call[:3] == ["ratelimit", "call", "localhost:8081"]
    assert "OK, limit 5 per " in called.stdout


def test_questions_become_these_rules(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"

    result = init(str(file), answers="yes\n\n7\nhour\ny\nn\n")

    assert result.exit_code == 0
    assert file.read_text() == (
        "domain: 'yes'\ndescriptors:\n- key: user\n  rate_limit:\n    unit: hour\n    requests_per_unit: 7\n"
        "  shadow_mode: true\n"
    )


def test_what_is_no_answer_is_told_and_asked_again(tmp_path: Path) -> None:
    asked = init(
        str(tmp_path / "first.yaml"), answers="a=b\nshop\n\nabc\n2000000000000000\n7\nfortnight\nhour\nmaybe\nn\nn\n"
    )

    assert asked.exit_code == 0
    assert [line.rpartition("]: ")[2] for line in asked.stdout.splitlines() if " is not " in line] == [
        "'a=b' is not a word without =",
        "'abc' is not a number from 0 to 1,125,899,906,842,624, written without marks",
        "'2000000000000000' is not a number from 0 to 1,125,899,906,842,624, written without marks",
        "'fortnight' is not one of second, minute, hour, day",
        "'maybe' is not y or n",
    ]


def test_answers_of_a_pipe_may_end_with_the_first_rule_and_not_before(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"

    without_unit = init(str(file), answers="shop\nuser\n7\n")
    written = file.exists()
    whole = init(str(file), answers="shop\nuser\n7\nhour\n")

    assert (without_unit.exit_code, written) == (1, False)
    assert without_unit.stderr.endswith(
        "the answers end before 'In each (second, minute, hour, day)'; nothing was written\n"
    )
    assert (whole.exit_code, "requests_per_unit: 7" in file.read_text()) == (0, True)


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    file = tmp_path / "first.yaml"
    file.write_text("mine")

    refused = init(str(file), "--example")
    kept = file.read_text()
    forced = init(str(file), "--example", "--force")

    assert (refused.exit_code, kept) == (1, "mine")
    assert refused.stderr == f"Error: {file} exists: name another file, or add --force to replace it\n"
    assert forced.exit_code == 0
    assert file.read_text().startswith("# Three rules")


def test_nothing_is_written_that_does_not_fit_the_folder_or_without_answers(tmp_path: Path) -> None:
    other, file = tmp_path / "other.yaml", tmp_path / "sub.yaml"
    other.write_text("domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]\n")

    clash = init(str(file), "--example")
    silent = init(str(tmp_path / "x" / "first.yaml"), answers="")

    assert (clash.exit_code, silent.exit_code) == (1, 1)
    assert "shop" in clash.stderr
    assert f"{file}: was not written" in clash.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.yaml"]
