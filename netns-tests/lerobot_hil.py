"""LeRobot's own learner service, and its actor's own threads of communication, without environment and networks.

``learner CONFIG`` and ``actor CONFIG``, with one configuration for both, of which the address is used. Each line of the
output is something that came from the other side: when (seconds since the epoch), what, and which number.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lerobot.rl import actor, learner
from lerobot.transport.utils import (
    bytes_to_state_dict,
    bytes_to_transitions,
    state_to_bytes,
    transitions_to_bytes,
)
from torch.multiprocessing import Queue

_PUSH_S, _STEP_S, _WAIT_S = 1.0, 0.1, 0.5
_WEIGHTS = 250_000  # 1 MB a push, as of a small policy


def main() -> None:
    """Until killed."""
    role, path = sys.argv[1:]
    configuration = _namespace(json.loads(Path(path).read_text()))
    configuration.output_dir, configuration.job_name = str(Path(path).parent), role
    policy = configuration.policy
    policy.device, policy.concurrency = "cpu", SimpleNamespace(actor="threads", learner="threads")
    policy.actor_learner_config.policy_parameters_push_frequency = _PUSH_S
    policy.actor_learner_config.queue_get_timeout = _WAIT_S
    {"learner": _learn, "actor": _act}[role](configuration, threading.Event())


def _namespace(value: Any) -> Any:
    return (
        SimpleNamespace(**{key: _namespace(item) for key, item in value.items()}) if isinstance(value, dict) else value
    )


def _learn(configuration: Any, stop: threading.Event) -> None:
    parameters, transitions, interactions = Queue(), Queue(), Queue()
    _thread(learner.start_learner, parameters, transitions, interactions, stop, configuration)
    _thread(_push, parameters)
    while True:
        for transition in bytes_to_transitions(transitions.get()):
            _say("transition", int(transition["action"][0]))


def _push(parameters: Any) -> None:
    version = 0
    while True:
        version += 1
        parameters.put(state_to_bytes({"version": torch.tensor(version), "weights": torch.zeros(_WEIGHTS)}))
        time.sleep(_PUSH_S)


def _act(configuration: Any, stop: threading.Event) -> None:
    where = configuration.policy.actor_learner_config
    stub, channel = actor.learner_service_client(host=where.learner_host, port=where.learner_port)
    if not actor.establish_learner_connection(stub, stop):
        sys.exit("no learner answers")
    parameters, transitions, interactions = Queue(), Queue(), Queue()
    threads = [
        _thread(actor.send_transitions, configuration, transitions, stop, stub, channel),
        _thread(actor.send_interactions, configuration, interactions, stop, stub, channel),
        _thread(actor.receive_policy, configuration, parameters, stop, stub, channel),
    ]
    _thread(_step, transitions)
    _thread(_watch, threads)
    while True:
        _say("parameters", int(bytes_to_state_dict(parameters.get())["version"]))


def _step(transitions: Any) -> None:
    number = 0
    while True:
        number += 1
        seen = {"observation.state": torch.zeros(18)}
        transition = {"state": seen, "action": torch.tensor([float(number)]), "reward": 0.0, "next_state": seen}
        ended = {"done": False, "truncated": False, "complementary_info": {}}
        transitions.put(transitions_to_bytes([{**transition, **ended}]))
        time.sleep(_STEP_S)


def _watch(threads: list[threading.Thread]) -> None:
    """The actor itself does not notice that one of its threads has ended."""
    while all(thread.is_alive() for thread in threads):
        time.sleep(_STEP_S)
    _say("ended", [thread.is_alive() for thread in threads].count(False))


def _thread(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _say(what: str, number: int) -> None:
    print(json.dumps({"at_s": time.time(), "what": what, "number": number, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    main()
