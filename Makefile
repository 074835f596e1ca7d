# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := src/paramedic/ward/environments/torch.txt
# The tests start hundreds of processes: where bytecode may not be kept, each of them compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick test-all lint bench score ward clean wheel

demo: $(VENV)/core
	$(BIN)/paramedic demo

# mypy has one core: side by side with the tests it costs no time of its own.
test: $(VENV)/dev
	$(MAKE) --no-print-directory -j 2 lint quick

quick: $(VENV)/dev
	$(BIN)/pytest -n auto -m "not slow"

test-all: $(VENV)/dev lint
	$(BIN)/pytest -n auto

lint: $(VENV)/dev
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/dev
	$(BIN)/python bench/scan.py
	$(BIN)/python bench/prefilter.py

score: $(VENV)/core
	$(BIN)/paramedic ward score

# Every case, failing and cured: about an hour on two cores, and several gigabytes of frameworks on the first run.
ward: $(VENV)/dev
	$(BIN)/paramedic ward run --all
	$(BIN)/paramedic ward run --all --fixed

wheel: $(VENV)/dev
	$(BIN)/python -m build --no-isolation --wheel

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

# Chromium opens the HTML report in a test, network namespaces are the hosts of another: no Python packages.
# torch first and held: left to itself, another package's wish for it would fetch gigabytes of CUDA.
# Bytecode of the rest is made where it is used: few of its 11,000 files are, and compiling them takes 46 s of processor.
$(VENV)/dev: pyproject.toml $(TORCH) $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check -r $(TORCH)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c $(TORCH) -e '.[dev]'
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { echo "installing chromium (the HTML report's test needs it)"; apt-get -o DPkg::Lock::Timeout=300 update -qq && apt-get -o DPkg::Lock::Timeout=300 install -y -qq chromium >/dev/null; }
	@command -v ip >/dev/null && command -v nft >/dev/null || \
	  { echo "installing iproute2 and nftables (the network lab needs them)"; apt-get -o DPkg::Lock::Timeout=300 update -qq && apt-get -o DPkg::Lock::Timeout=300 install -y -qq iproute2 nftables >/dev/null; }
	@touch $@
