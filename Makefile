# EdgeLink. `make demo` shows the whole product on one machine, `make test` tests it; `make help` lists the rest.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Programs the product or its lab runs, and the packages that have them.
PROGRAMS := mosquitto=mosquitto nft=nftables ip=iproute2 ss=iproute2 ping=iputils-ping nsenter=util-linux ps=procps \
  mountpoint=util-linux iptables=iptables
UNIT_PROGRAMS := strace=strace groff=groff-base
BENCH_PROGRAMS := iperf3=iperf3
TEST_PROGRAMS := systemd-nspawn=systemd-container systemd-analyze=systemd debootstrap=debootstrap \
  dockerd=docker.io docker-compose=docker-compose ssh=openssh-client $(BENCH_PROGRAMS)
SOAK_PROGRAMS := munged=munge slurmctld=slurmctld slurmd=slurmd sbatch=slurm-client \
  qemu-system-x86_64=qemu-system-x86 busybox=busybox-static modprobe=kmod
# What the user's interpreter runs, which may be older than EdgeLink's own: JetPack 6 has Python 3.10.
USERS_INTERPRETER := edgelink/training/trainer $(addprefix edgelink/ray_cluster/,helper.py node_look.py link_meter.py exchange.py) \
  $(addprefix edgelink/process/import_hook/,sitecustomize.py grpc_patience.py report_command.py) edgelink/launch/ray_pending.py
# One run for each: two folders may each have a file of one name.
TESTS := tests netns-tests netns-tests/benchmarks
WEB_PROGRAMS := chromium=chromium chromedriver=chromium-driver
IMAGES := relay head edge
ROUNDS ?= 10
PREVIOUS ?= a12de27# the first one whose nodes know each other by the echo
BENCH_TRAINING := netns-tests/benchmarks/test_learning.py netns-tests/benchmarks/test_robot_loop.py netns-tests/benchmarks/test_training_wan.py \
  netns-tests/benchmarks/test_link_budget.py netns-tests/benchmarks/test_tunnel_transport.py
# Five at a time on two cores: half of a test's time is waiting, for a process mostly.
UNIT := -n 5 --dist worksteal tests
# Three worlds at a time, also on two cores: part of a test is waiting for an outage to pass. The lab bounds how many nodes
# start Ray at once. Those that took longest begin first (netns-tests/seconds.json).
NETNS_AT_ONCE ?= 3
NETNS := -n $(NETNS_AT_ONCE) --no-loadscope-reorder netns-tests --ignore=netns-tests/benchmarks

# Hundreds of short processes start here: what Python compiled once is kept, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

# The lab and the tests run EasyTier out of a wheel that the lock names (ADR 0034), which is made for x86_64 only.
ifeq ($(shell uname -m),x86_64)
export EDGELINK_EASYTIER ?= wheel
endif

.PHONY: help setup system easytier machine demo test test-long lint docs reference words unit processes netns netns-seconds neighbours bench bench-faults bench-fleet bench-web bench-training soak coverage packages images check-aarch64 clean

help: ## this list
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

setup: system $(VENV)/.edgelink easytier ## .venv with the edgelink command, and everything it runs

system:
	@.ci/system-packages $(PROGRAMS)

# A small root file system with systemd, for a machine that boots and for images; made once, into the cache.
machine: setup
	@.ci/system-packages $(TEST_PROGRAMS)
	@.ci/system-packages $(WEB_PROGRAMS) || echo "No Chromium: the tests of the web page are skipped"
	@.ci/debian-root >/dev/null || echo "No root file system for a booted systemd: its tests make one, or fail"

$(VENV)/.created: tests/bootstrap.lock
	@python=$$(.ci/find-python) && echo "Making $(VENV) with $$python" && "$$python" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r tests/bootstrap.lock
	@touch $@

$(VENV)/.locked: $(VENV)/.created tests/requirements.lock
	@echo "Installing the locked packages; the first time this downloads Ray and torch"
	@$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes tests/requirements.lock
	@touch $@

# After a sync, which removes what the lock does not name.
$(VENV)/.edgelink: $(VENV)/.locked pyproject.toml $(wildcard edgelink/easytier_wheel/programs/*)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@$(BIN)/python -m compileall -q edgelink
	@touch $@

# Asks every time: it takes a moment, and finds out whether what is there can be used.
easytier: system $(VENV)/.edgelink
	@$(BIN)/python -m edgelink.overlay.acquisition

demo: setup ## relay, cloud and two edges behind NAT on this machine, one policy trained (as root)
	@$(BIN)/edgelink lab run

test: lint docs unit processes netns ## lint, types, the site, unit tests, tests on a real kernel; sets up all it needs

test-long: setup machine ## the rest of the tests on a real kernel: long ones, which CI runs too (as root)
	$(BIN)/python -m pytest $(NETNS) -m long --durations=30

lint: setup ## ruff, mypy, import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --disable-error-code no-any-return $(USERS_INTERPRETER)
	@for folder in $(TESTS); do echo "mypy $$folder"; $(BIN)/mypy --config-file tests/mypy.ini $$folder/*.py || exit 1; done
	$(BIN)/lint-imports

# An environment of its own: the product needs nothing of it.
build/docs-venv/.locked: tests/docs.lock $(VENV)/.created
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/docs-venv
	@$(BIN)/uv pip sync --quiet --python build/docs-venv/bin/python --require-hashes tests/docs.lock
	@touch $@

docs: build/docs-venv/.locked ## the documentation as a site, in build/site; it works without Internet
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --quiet --strict

reference: $(VENV)/.edgelink ## the generated pages of docs/reference, written anew
	PYTHONPATH=docs/tools $(BIN)/python -m reference_pages

words: $(VENV)/.edgelink ## tests/words written anew: the sentences that tests hear; review them as a diff
	@EDGELINK_WORDS=write $(BIN)/python -m pytest -q -n0 tests

unit: setup ## tests without root, network or programs of their own; a minute at most
	@.ci/system-packages $(UNIT_PROGRAMS)
	$(BIN)/python -m pytest $(UNIT) -m "not processes"

processes: setup ## tests of the command line, robots, drivers and a killed registry, as processes; without root or network
	@.ci/system-packages $(UNIT_PROGRAMS)
	$(BIN)/python -m pytest $(UNIT) -m processes

netns: setup machine ## tests with real EasyTier, Mosquitto and Ray in network namespaces (as root)
	$(BIN)/python -m pytest $(NETNS) -m "not long" --durations=30

netns-seconds: setup machine ## all of them, long ones too; writes down what begins first (netns-tests/seconds.json)
	$(BIN)/python -m pytest $(NETNS) --record-seconds

neighbours: setup ## upgrades from another version, under what runs, and the way back: PREVIOUS=REVISION|CHECKOUT (as root)
	EDGELINK_PREVIOUS=$(PREVIOUS) $(BIN)/python -m pytest -s netns-tests/test_neighbouring_versions.py

bench: setup ## figures, EdgeLink against the by-hand road (as root)
	@.ci/system-packages $(BENCH_PROGRAMS)
	$(BIN)/python -m pytest netns-tests/benchmarks --ignore=netns-tests/benchmarks/test_faults.py \
	  --ignore=netns-tests/benchmarks/test_fleet.py --ignore=netns-tests/benchmarks/test_web_page.py \
	  $(BENCH_TRAINING:%=--ignore=%) -s

bench-faults: setup ## the same faults on EdgeLink and on the by-hand road, side by side; half an hour (as root)
	$(BIN)/python -m pytest netns-tests/benchmarks/test_faults.py -s

bench-fleet: setup ## 100 to 3,000 nodes on one registry and broker; EDGELINK_FLEET=100,300 for other sizes (as root)
	$(BIN)/python -m pytest netns-tests/benchmarks/test_fleet.py -s

bench-web: setup ## the head's web page with 500 nodes in a real browser; a minute
	@.ci/system-packages $(WEB_PROGRAMS)
	$(BIN)/python -m pytest netns-tests/benchmarks/test_web_page.py -s

bench-training: setup ## the built-in trainer: against a reference PPO, over a WAN, with a robot; three hours (as root)
	@.ci/system-packages $(BENCH_PROGRAMS)
	$(BIN)/python -m pytest $(BENCH_TRAINING) -s

soak: setup machine ## the tests at full length: the registry killed 300 times, 10,500 steps of its model, then netns tests, ROUNDS times
	@.ci/system-packages $(SOAK_PROGRAMS)
	EDGELINK_SOAK=1 $(BIN)/python -m pytest tests/test_relay_{crash,hostile_inputs,model}.py
	EDGELINK_SOAK=1 $(BIN)/python -m pytest -m hypothesis tests
	@set -e; for round in $$(seq $(ROUNDS)); do echo "round $$round of $(ROUNDS)"; \
	  EDGELINK_SOAK=1 EDGELINK_PREVIOUS=$(PREVIOUS) $(BIN)/python -m pytest $(NETNS) --exitfirst; done

coverage: setup machine ## which branches of edgelink/ the tests take, in all processes; an hour (as root)
	@rm -rf build/coverage
	.ci/coverage bash -c '$(BIN)/python -m pytest $(UNIT) && $(BIN)/python -m pytest $(NETNS)'

packages: setup ## wheel, sdist, offline bundle and .deb for this machine's architecture, in dist/ (MACHINE=aarch64: for another)
	$(BIN)/python .ci/packages/packages.py deb $(MACHINE:%=--machine %)

# With a registry's name in front, as docker push needs it: REGISTRY=registry.example.org/robots/.
images: ## container images edgelink-relay, -head and -edge for this architecture; IMAGE_OPTIONS="--build-arg …" for docker build
	@set -e; version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); for image in $(IMAGES); do \
	  docker build --file docker/Dockerfile --target $$image $(IMAGE_OPTIONS) \
	    --tag $(REGISTRY)edgelink-$$image --tag $(REGISTRY)edgelink-$$image:$$version .; done

check-aarch64: setup ## whether all that a node runs is there as wheels for aarch64; asks the package index only
	$(BIN)/python .ci/packages/packages.py check-aarch64

clean: ## remove .venv, caches and build output; EasyTier's cache stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
