"""Every case that RLinf's own code computed: the same acceptance, plan and rule (tests/vectors/README.md)."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from edgelink.placement import RLINF_0_3, InvalidClusterError, RlinfRules, plan, rlinf_rules
from edgelink.placement.cluster_file import parse_yaml

_LINES = lzma.decompress((Path(__file__).parent / "vectors/placement.jsonl.xz").read_bytes()).splitlines()
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in map(json.loads, _LINES)}


def resolved(case: dict[str, Any], rules: RlinfRules = RLINF_0_3) -> dict[str, Any]:
    result = plan(
        case["cluster"],
        case["nodes"],
        driver=case.get("driver"),
        isolate=case.get("isolate", True),
        num_nodes=case.get("num_nodes_arg"),
        rules=rules,
    )
    content: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    return content


def test_all_cases_are_there() -> None:
    """An archive that lost half of its cases would pass all others."""
    assert len(CASES) == 392
    assert sum(case["expect"]["ok"] for case in CASES.values()) == 195


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expect"]["ok"]])
def test_what_rlinf_accepts_lands_as_in_rlinf(name: str) -> None:
    """Nodes, groups, each process and its environment are equal, field by field."""
    expected = dict(CASES[name]["expect"])
    result = resolved(CASES[name])

    placements = expected.pop("placements")
    assert result["warnings"] == expected.pop("warnings", [])
    assert {key: result[key] for key in expected if key != "ok"} == {k: v for k, v in expected.items() if k != "ok"}
    assert list(result["placements"]) == list(placements)
    for component, items in placements.items():
        got = result["placements"][component]
        assert [{key: item[key] for key in want} for item, want in zip(got, items, strict=True)] == items


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case["expect"]["ok"]])
def test_what_rlinf_refuses_is_refused_at_the_same_rule(name: str) -> None:
    """The first problem is RLinf's; others may follow. Each says where and what to do."""
    expected = CASES[name]["expect"]

    with pytest.raises(InvalidClusterError) as caught:
        resolved(CASES[name])

    error = caught.value
    assert (error.stage, error.problems[0].rule) == (expected["stage"], expected["error_contains"])
    assert expected["error_contains"] in str(error)
    assert all(problem.key and problem.fix for problem in error.problems)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "cluster_yaml" in case])
def test_yaml_is_read_as_omegaconf_reads_it(name: str) -> None:
    """Numbers in base 60, octal ones and floats: RLinf sees what OmegaConf makes of them, and so do we."""
    case = CASES[name]
    content, _, _ = parse_yaml(case["cluster_yaml"])
    assert content == case["cluster"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["expect"]["ok"]])
def test_rlinf_0_4_changes_three_variables_and_nothing_else(name: str) -> None:
    """RLinf 0.4.0 computed the same for all of these cases but for them (tests/vectors/README.md)."""
    expected = CASES[name]["expect"]["placements"]
    result = resolved(CASES[name], rlinf_rules("0.4.0", torch="2.8.0+cu128"))

    for component, items in expected.items():
        for got, want in zip(result["placements"][component], items, strict=True):
            assert {key: got[key] for key in want if key != "env"} == {k: v for k, v in want.items() if k != "env"}
            changed = got["env"].items() ^ want.get("env", got["env"]).items()
            if "env" in want:
                first = want["accelerators"][:1] if want["accelerator_type"] == "NV_GPU" else []
                new = {
                    ("EGL_DEVICE_ID", device)
                    for device in first
                    if got["env"].get("MUJOCO_GL") not in ("osmesa", "glx")
                }
                gone = {("TORCH_NCCL_AVOID_RECORD_STREAMS", "1")} & want["env"].items()
                assert changed == new | gone | {("RLINF_NET_EMULATION", "0")}
