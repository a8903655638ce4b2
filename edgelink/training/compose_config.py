"""Composes a configuration of Hydra and prints its ``cluster`` section as JSON; run by the *user's* interpreter.

    compose_config.py FILE [OVERRIDE …]

It needs nothing but the standard library, omegaconf, and for a file with a ``defaults`` list hydra. The last line of
stdout is ``{"section": …, "content": …}``, the latter all that can be resolved here, or ``{"error": …}``; exit status
3: omegaconf or hydra is not there; 4: hydra refuses the file, as it would refuse it to the training program.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

_NOT_THERE, _REFUSED = 3, 4


def answer(content: "dict[str, Any]") -> None:
    """The last line of stdout."""
    sys.stdout.write(json.dumps(content, default=str) + "\n")


def compose(path: Path, overrides: "list[str]") -> Any:
    """The whole configuration, as the training program gets it."""
    from omegaconf import OmegaConf

    written = OmegaConf.load(path)
    if "defaults" not in written and not overrides:
        return written
    if path.suffix != ".yaml":
        raise ValueError(f"Hydra composes files named *.yaml, and would take {path.stem}.yaml for {path.name}")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(config_dir=str(path.parent.resolve()), version_base=None):
        return hydra_compose(config_name=path.stem, overrides=overrides)


def settled(config: Any) -> Any:
    """Without what only the training program can resolve, such as by resolvers of its own."""
    from omegaconf import OmegaConf

    with suppress(Exception):
        return OmegaConf.to_container(config, resolve=True)
    if OmegaConf.is_list(config):
        return []
    found = {}
    for key in config:
        with suppress(Exception):
            value = config[key]
            found[key] = settled(value) if OmegaConf.is_config(value) else value
    return found


def main() -> int:
    from omegaconf import OmegaConf

    config = compose(Path(sys.argv[1]), sys.argv[2:])
    section = config.cluster if "cluster" in config else config
    answer({"section": OmegaConf.to_container(section, resolve=True), "content": settled(config)})
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ImportError as error:
        answer({"error": str(error)})
        sys.exit(_NOT_THERE)
    except Exception as error:
        cause = error.__cause__ or error  # Hydra's own words often say only that there was an error
        answer({"error": f"{type(cause).__name__}: {cause}"})
        # Hydra's own word for a file that its defaults list names and that is nowhere; the variables of a search path
        # may be set by the script that starts the program, and are no such word.
        sys.exit(_REFUSED if type(error).__name__ == "MissingConfigException" else 1)
