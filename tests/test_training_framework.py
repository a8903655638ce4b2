"""Which framework a command is."""

from __future__ import annotations

from pathlib import Path

import pytest
from telling import Words

from edgelink.errors import UsageError
from edgelink.training.framework import framework_of, with_cluster_file

FILES = {
    "examples/embodiment/train_embodied_agent.py": "import hydra\nfrom rlinf.scheduler import Cluster\n",
    "examples/embodiment/run_embodiment.sh": 'SRC_FILE="${HERE}/train_embodied_agent.py"\npython ${SRC_FILE}\n',
    "rlinf/__init__.py": "",
    "elsewhere/train.py": "import torch\n# import rlinf\n",
    "elsewhere/run_gsm8k.sh": "set -x\npython3 -m verl.trainer.main_ppo \\\n  trainer.nnodes=2\n",
    "elsewhere/ppo.sh": "python3 -m openrlhf.cli.train_ppo_ray --x 1\n",
    "elsewhere/sft.sh": "deepspeed --module openrlhf.cli.train_sft --x 1\n",
    "elsewhere/both.py": "import verl\nimport rlinf\n",
    "elsewhere/here.py": "if True:\n    from verl.single_controller.ray import RayWorkerGroup\n",
    "elsewhere/commented.sh": "  # python3 -m verl.trainer.main_ppo\npython train.py\n",
    "elsewhere/other.sh": "python train.py\n",
    "elsewhere/local.sh": 'set -x\npython3 -m elsewhere.here trainer.nnodes=2 "${MORE[@]}"\n',
    "elsewhere/submits.sh": "ray job submit --address=$A \\\n  -- python3 elsewhere/here.py trainer.nnodes=2\n",
    "elsewhere/nested.sh": 'cd "$(dirname "$0")"\nbash beside.sh\n',
    "elsewhere/beside.sh": "python here.py\n",
    "elsewhere/loop.sh": "bash elsewhere/loop.sh\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "framework", "is_sure"),
    [
        ("python examples/embodiment/train_embodied_agent.py --config-name x", "rlinf", True),
        ("bash examples/embodiment/run_embodiment.sh maniskill", "rlinf", True),
        ("python -m examples.embodiment.train_embodied_agent", "rlinf", True),
        ("python -u -m verl.trainer.main_ppo trainer.nnodes=2", "verl", True),
        ("bash elsewhere/run_gsm8k.sh", "verl", True),
        ("env A=1 python elsewhere/here.py", "verl", True),
        ("python3 -m openrlhf.cli.train_ppo_ray --x", "openrlhf", True),
        ("./elsewhere/ppo.sh", "openrlhf", True),
        ("deepspeed --module openrlhf.cli.train_dpo", "plain", True),
        ("bash elsewhere/sft.sh", "plain", True),
        ("python elsewhere/train.py -m rlinf", "plain", False),
        ("taskset -c 0-3 python3 -m verl.trainer.main_ppo", "verl", True),
        ("numactl -N 0 -m 0 python3 elsewhere/here.py", "verl", True),
        ("bash -lc cd\tx;python3\t-m\tverl.trainer.main_ppo", "verl", True),
        ("python3 -mverl.trainer.main_ppo", "verl", True),
        ("python elsewhere/both.py", "plain", False),
        ("python elsewhere/missing.py", "plain", False),
        ("/opt/bin/edgelink train", "plain", True),
        ("some-program", "plain", False),
        ("bash elsewhere/commented.sh", "rlinf", True),
        ("bash elsewhere/local.sh", "verl", True),
        ("bash elsewhere/submits.sh", "verl", True),
        ("bash elsewhere/nested.sh", "verl", True),
        ("bash -c cd\tx;python3\telsewhere/here.py", "verl", True),
        ("bash elsewhere/loop.sh", "rlinf", True),
        ("python -m http.server", "plain", False),
        ("python -c import\tos;import\trlinf", "rlinf", True),
    ],
)
def test_a_command_tells_its_framework(
    checkout: Path, command: str, framework: str, is_sure: bool, words: Words
) -> None:
    """By module, imports or checkout; what is not sure is plain, and says how to tell."""
    found = framework_of(None, command.split(" "), checkout)
    assert (found.framework.name, found.is_sure) == (framework, is_sure)
    assert ("--framework" in str(found)) == (not found.is_sure)
    words(found, CHECKOUT=checkout)


def test_what_the_caller_says_holds(checkout: Path) -> None:
    """Also against what the command looks like; an unknown name is refused with those that there are."""
    assert framework_of("plain", ["python", "-m", "verl.trainer"], checkout).framework.name == "plain"
    with pytest.raises(UsageError, match="rlinf, openrlhf, verl, plain"):
        framework_of("trl", [], checkout)


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        ("bash -lc python\ttrain.py", "rlinf"),
        ("python -um torch.distributed.run train.py", "rlinf"),
        ("python -mtrain", "rlinf"),
        ("edgelink train", "plain"),
        ("python -m verl.trainer.main_ppo", "verl"),
        ("deepspeed --module openrlhf.cli.train_dpo", "plain"),
    ],
)
def test_what_is_not_sure_is_rlinf_with_a_cluster_file(checkout: Path, command: str, framework: str) -> None:
    """Which would carry the whole environment of a plain command to every node; who knows better says so."""
    argv = command.split(" ")
    assert with_cluster_file(framework_of(None, argv, checkout)).framework.name == framework
    assert with_cluster_file(framework_of("plain", argv, checkout)).framework.name == "plain"
