# Two commands do everything: `make demo` and `make test`. Each sets up what it needs.
VENV    := .venv
BIN     := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# An activated environment of the caller's must not leak into ours.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: setup
setup: $(VENV)/.ready ## Make the virtual environment

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV)

.PHONY: demo
demo: setup ## Two lab hosts, deployed, verified, reported (needs root, Debian)
	@scripts/demo.sh

.PHONY: lint
lint: setup ## Style, types, playbooks
	ruff check .
	ruff format --check .
	mypy
	yamllint --strict .
	ansible-lint --offline

.PHONY: unit
unit: setup ## Quick tests, no root needed
	pytest -q tests/unit

.PHONY: bench-weights
bench-weights: setup ## How fast weights arrive, beside hf download and curl (no root needed)
	python benchmarks/weights.py

.PHONY: bench-deploy
bench-deploy: setup ## A deploy against the longer of its two downloads (needs root for the lab)
	python benchmarks/deploy.py

.PHONY: bench-scale
bench-scale: setup ## Deploys that change nothing, by number of hosts (needs root for the lab)
	python benchmarks/scale.py

.PHONY: bench-rollout
bench-rollout: setup ## Rollouts under load on a lab of four hosts, good and bad (needs root)
	pytest -q -s -p roost.lab.fixtures benchmarks/rollout.py

.PHONY: bench-client
bench-client: setup ## Our streaming client beside the engine's load generator (needs root for the lab)
	roost lab up
	roost deploy -i inventory/lab --limit lab-01
	nsenter --net=$${ROOST_LAB_STATE:-/var/lib/roost-lab}/lab/hosts/lab-01/netns \
	    python benchmarks/client.py -i inventory/lab --host lab-01 --direct

.PHONY: bench-regressions
bench-regressions: setup ## What a comparison flags, in twenty pairs of each kind (no root needed)
	python -m benchmarks.regressions

.PHONY: test
test: setup ## Everything the project tests (needs root for the lab)
	@scripts/test.sh

.PHONY: clean
clean: ## End the labs and remove what was built here (not the cache)
	-roost lab down
	rm -rf $(VENV) runs site
