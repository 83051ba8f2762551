"""docs/spec-map.md is what the ledgers, the markers and the kit's checks make it."""

from pathlib import Path

import pytest
from tools import spec_map
from tools.spec_ledger import ROOT, requirements


def test_the_page_is_not_stale() -> None:
    assert spec_map.main(["--check"]) == 0, "run python -m tools.spec_map"


def test_a_stale_page_is_told_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "map.md"
    monkeypatch.setattr(spec_map, "PAGE", stale)
    assert spec_map.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert spec_map.main([]) == 0
    assert spec_map.main(["--check"]) == 0
    stale.write_text(stale.read_text().replace("Section 6.3", "Section 6.33"))
    assert spec_map.main(["--check"]) == 1


def test_every_sentence_has_a_row_with_modules_and_tests() -> None:
    rows = [line.split(" | ") for line in spec_map.page().splitlines() if line.startswith("| [S")]
    assert len(rows) == len(requirements())
    assert [row for row in rows if len(row) != 4 or not row[1].startswith("[") or not row[2].startswith("[")] == []


def test_every_link_leads_to_a_file() -> None:
    targets = {part.split(")")[0].split("#")[0] for part in spec_map.page().split("](../")[1:]}
    assert targets
    assert [target for target in targets if not (ROOT / target).is_file()] == []
