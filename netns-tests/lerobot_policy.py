"""Writes a small ACT policy with random weights to a directory: what a PolicyServer loads, without any download."""

from __future__ import annotations

import sys

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies import make_pre_post_processors
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy

_CHUNK = 20


def main() -> None:
    """``DIRECTORY JOINTS SIDE``, of the robot of ``lerobot_robot_lab.py``."""
    directory, joints, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (joints,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, side, side)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (joints,))},
        chunk_size=_CHUNK,
        n_action_steps=_CHUNK,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        n_decoder_layers=1,
        use_vae=False,
        pretrained_backbone_weights=None,
        device="cpu",
        push_to_hub=False,
    )
    shapes = {"observation.state": (joints,), "action": (joints,), "observation.images.front": (3, 1, 1)}
    plain = {name: {"mean": torch.zeros(shape), "std": torch.ones(shape)} for name, shape in shapes.items()}
    for part in (ACTPolicy(config), *make_pre_post_processors(config, dataset_stats=plain)):
        part.save_pretrained(directory)


if __name__ == "__main__":
    main()
