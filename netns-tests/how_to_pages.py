"""Which commands of docs/how-to `test_how_to.py` types, and which test runs each of the others.

A page is typed as far as an ordinary network of relay, head and two edges can go without being taken apart; what it has
beyond that, and what needs other machines, is in the table. `tests/test_docs.py` sees that nothing is left out.
"""

from __future__ import annotations

from typed_page import DOCS, Step, steps

__all__ = ["ELSEWHERE", "HOW_TO", "STATUS", "TYPED", "run_elsewhere", "steps"]

HOW_TO = DOCS / "how-to"
# In this order: the former leave every node in Ray, the last ones do not.
TYPED = (
    *("look", "plan", "direct-paths", "dashboard", "access", "registry", "backup", "second-relay", "disk-images"),
    *("driver-environment", "preflight", "report", "wait-for-nodes", "lab"),
)
# What ends with another status than 0, by a part of the command.
STATUS = {"trainer.n_gpus_per_node=8": 78}
# By page: how a command begins, and the test that runs it.
ELSEWHERE: dict[str, dict[str, str]] = {
    "apps": {"edgelink run": "test_apps.py::test_a_pair_works_through_a_cut_and_ctrl_c_ends_both"},
    "backup": {
        "edgelink registry restore --replace": "test_cli_registry.py"
        "::test_a_registry_is_replaced_only_while_no_daemon_has_it",
        "edgelink registry restore": "test_relays.py::test_the_registry_moves_to_the_other_relay",
        "systemctl restart": "test_systemd.py::test_a_restart_leaves_easytier_and_ray_running",
        "systemctl": "test_systemd_relay.py"
        "::test_a_relays_broker_and_easytier_outlive_its_daemon_and_end_with_its_unit",
        "edgelink relay": "test_relays.py::test_the_registry_is_restored_at_an_address_that_nobody_knows",
    },
    "disk-images": {
        "edgelink leave": "test_clones.py::test_a_copy_becomes_a_node_of_its_own",
        "edgelink up": "test_systemd.py::test_one_command_makes_a_machine_a_node",
    },
    "docker": {
        "docker compose --project-name edgelink-demo": "test_docker.py::test_the_demo_trains_a_policy",
        "docker save": "test_docker.py::test_compose_builds_with_the_packages_that_are_named",
        "docker load": "test_docker.py::test_compose_builds_with_the_packages_that_are_named",
        "EDGELINK_EDGE_IMAGE=": "test_docker.py::test_compose_builds_with_the_packages_that_are_named",
        "docker build": "test_docker.py::test_compose_builds_with_the_packages_that_are_named",
        "RELAY=relay.example.org docker compose": "test_docker.py::test_a_relay_makes_its_network_once",
        "export": "test_docker.py::test_a_relay_makes_its_network_once",
        "docker compose -f docker/compose.relay": "test_docker.py::test_a_relay_makes_its_network_once",
        "docker compose -f docker/compose.edge": "test_docker.py::test_an_edge_joins_with_a_token_from_a_file",
        "docker compose -f docker/compose.head": "test_docker.py::test_a_head_in_a_container_trains_on_an_edge",
        "mkdir": "test_docker.py::test_a_head_in_a_container_trains_on_an_edge",
        "docker inspect": "test_docker.py::test_what_is_missing_is_named",
    },
    "driver-environment": {
        "edgelink run --cluster": "test_rlinf.py::test_the_heads_shell_does_not_reach_the_edges",
        "edgelink run --env": "test_rlinf.py::test_the_heads_shell_does_not_reach_the_edges",
    },
    "exec": {
        "edgelink exec": "test_road.py::test_the_head_runs_programs_on_its_edges",
        "edgelink ssh": "test_cli_ssh.py::test_ssh_knows_the_node_by_what_the_node_has_signed",
    },
    "from-the-trainer-to-rlinf": {
        "edgelink plan config.yaml --live --link-budget": "test_cli_link_budget.py"
        "::test_the_way_from_the_trainer_to_rlinf_resolves_and_is_budgeted",
        "edgelink plan": "test_rlinf.py::test_each_worker_is_where_the_plan_said",
        "edgelink run": "test_rlinf.py::test_each_worker_is_where_the_plan_said",
    },
    "gpu-cloud-behind-nat": {
        "edgelink token create --role head --hostname": "test_tutorial.py::test_a_newcomer_trains_a_policy",
        "edgelink token create": "test_enrolment.py::test_a_reimaged_machine_gets_its_place_back",
        "edgelink join": "test_systemd.py::test_joining_with_a_service_is_the_same",
        "edgelink head": "test_variants.py::test_relay_and_head_on_one_machine",
    },
    "install": {
        "env PIPX_HOME": "test_packages.py::test_pipx_install",
        "env UV_TOOL_DIR": "test_packages.py::test_uv_tool_install",
        "curl": "test_tutorial.py::test_a_newcomer_trains_a_policy",
        "sh dist/install.sh": "test_release.py::test_install_sh_installs_what_it_was_made_for",
        "tar": "test_packages.py::test_a_bundle_is_installed_upgraded_and_removed_without_network",
        "./edgelink-": "test_packages.py::test_a_bundle_is_installed_upgraded_and_removed_without_network",
        "apt": "test_packages.py::test_a_deb_is_installed_upgraded_and_removed_without_network",
        "edgelink version": "test_packages.py::test_uv_tool_install",
    },
    "lab": {
        "edgelink lab up ": "test_variants.py::test_the_lab_by_its_commands_and_direct_paths",
        "edgelink lab run": "test_road.py::test_the_whole_road_by_one_command",
    },
    "lerobot": {
        "edgelink access allow head tcp/7447": "test_lerobot.py::test_routers_of_ros_meet_over_the_overlay",
        "eval": "test_lerobot.py::test_routers_of_ros_meet_over_the_overlay",
        "edgelink": "test_lerobot.py::test_lerobots_own_programs_go_on_after_a_cut",
    },
    "link-budget": {
        "edgelink plan": "test_link_budget.py::test_the_links_of_a_placement_are_measured_and_a_narrow_one_is_refused"
    },
    "long-runs": {"edgelink run": "test_driver_supervised.py::test_a_node_that_died_costs_one_interval"},
    "look": {
        "edgelink nodes   # franka-1": "test_cli_nodes.py::test_the_page_about_looking_shows_what_is_printed",
        "edgelink nodes   # franka-2": "test_ride_through.py::test_an_edge_that_is_cut_off_is_paused_on_every_view",
        "edgelink completion": "test_cli_look.py::test_the_completion_script_is_printed",
    },
    "offline": {"edgelink up": "test_systemd_relay.py::test_one_command_makes_the_relay"},
    "many-machines": {
        "edgelink token create --role edge --uses": "test_recipes.py::test_a_machine_joins_at_its_first_boot",
        "ansible-playbook -i inventory.ini site.yml": "test_recipes.py"
        "::test_ansible_sets_a_network_up_and_then_changes_nothing",
        "ansible-playbook -i inventory.ini remove.yml": "test_recipes.py::test_ansible_takes_a_node_away",
    },
    "openrlhf": {"edgelink run": "test_frameworks.py::test_openrlhfs_colocated_groups_share_bundles"},
    "plan": {"EMBODIED_PATH": "test_cli_plan.py::test_hydra_itself_composes"},
    "preflight": {
        "edgelink run --cluster cluster.yaml --require": "test_road.py::test_a_missing_path_is_named_with_its_nodes"
    },
    "registry": {
        "edgelink registry release": "test_enrolment.py::test_a_lease_is_freed_by_the_operator_only",
        "edgelink token create --hostname": "test_cli_registry.py::test_a_lost_token_is_asked_for_again",
        "edgelink token create --replaces": "test_enrolment.py::test_a_reimaged_machine_gets_its_place_back",
        "edgelink up": "test_systemd.py::test_one_command_makes_a_machine_a_node",
        "edgelink registry set": "test_leases.py::test_a_lease_is_changed_on_a_running_node",
    },
    "relay-and-head-on-one-machine": {"edgelink": "test_variants.py::test_relay_and_head_on_one_machine"},
    "revoke": {
        "edgelink revoke": "test_revoke.py::test_a_revoked_node_is_out_and_a_training_goes_on",
        "edgelink rotate-secret": "test_revoke.py::test_an_offline_node_catches_up",
    },
    "rlinf": {"edgelink": "test_rlinf.py::test_each_worker_is_where_the_plan_said"},
    "robots": {
        "python alone.py": "test_trainer_robot.py::test_the_how_to_tries_a_robot_alone",
        "edgelink run": "test_driver_supervised.py::test_who_trains_is_told_that_the_robot_is_stopped",
        "edgelink robot export": "test_lerobot.py::test_what_a_robot_did_is_read_and_replayed_by_others",
        "/opt/lerobot/bin/lerobot-replay": "test_lerobot.py::test_what_a_robot_did_is_read_and_replayed_by_others",
        "edgelink robot replay": "test_robot_replay.py::test_the_cell_does_the_same_again",
        "edgelink robot": "test_trainer_robot.py::test_a_person_does_it_by_command",
    },
    "second-relay": {"edgelink relay": "test_relays.py::test_a_second_relay_joins_and_everyone_learns_of_it"},
    "slurm": {"sbatch": "test_slurm.py::test_one_allocation_is_one_cluster"},
    "systemd": {
        "edgelink join": "test_systemd.py::test_joining_with_a_service_is_the_same",
        "edgelink service install": "test_systemd.py::test_children_in_the_daemons_own_unit_outlive_it_too",
        "systemctl status": "test_systemd.py::test_easytier_and_ray_are_units_of_their_own",
    },
    "take-over-by-hand": {"edgelink relay": "test_relay_start.py::test_a_network_set_up_by_hand_is_taken_over"},
    "train": {"edgelink run": "test_link_budget.py::test_a_training_tells_its_budget_and_what_came_of_it"},
    "report": {"edgelink report --story": "test_cli_report.py::test_the_story_is_told_of_the_recorder"},
    "wait-for-nodes": {
        "edgelink run --nodes franka-1": "test_ray_heals.py::test_a_run_for_some_nodes_has_ranks_without_gaps",
        "edgelink exec -- jupyter": "test_how_to.py::test_a_notebook_works_on_every_node_for_as_long_as_it_is_open",
    },
    "up": {
        "edgelink up --relay": "test_systemd_relay.py::test_one_command_makes_the_relay",
        "edgelink token create --role edge --hostname": "test_tutorial.py::test_a_newcomer_trains_a_policy",
        "edgelink token create": "test_tutorial.py::test_a_newcomer_trains_a_policy",
        "edgelink up elt1_": "test_systemd.py::test_one_command_makes_a_machine_a_node",
        "edgelink down": "test_systemd.py::test_down_keeps_the_place_and_up_brings_it_back",
        "edgelink up": "test_systemd.py::test_down_keeps_the_place_and_up_brings_it_back",
    },
    "verl": {
        "edgelink up": "test_systemd.py::test_one_command_makes_a_machine_a_node",
        "edgelink run": "test_frameworks.py::test_verls_worker_group_meets_over_the_overlay",
    },
}


def run_elsewhere(page: str, step: Step) -> str:
    """The test that runs a command of a page; empty for what is typed."""
    command = step.command.removeprefix("sudo ")
    return next((test for start, test in ELSEWHERE.get(page, {}).items() if command.startswith(start)), "")
