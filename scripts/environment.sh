# Sourced by the scripts beside it, from anywhere: goes to the checkout and makes the virtual
# environment, or reuses it, as long as pyproject.toml is the one it was made from.
#
#   QDQBRIDGE_VENV        where the environment is (default: .venv in the checkout)
#   QDQBRIDGE_RELAY_VENV  where the one with Relay is (default: .venv-relay in the checkout)
#   QDQBRIDGE_ENGINES_VENV  where the one with vendors' engines is (default: .venv-engines)
#   PYTHON                the Python that makes them (default: python3)
#
# main_environment makes the first and sets $venv_python, its Python; relay_environment makes the
# second and sets $relay_python. Both TVMs are the package `tvm`, so they cannot share one.
# engines_environment makes the third and sets $engines_python: what qdqbridge does without these
# engines is tested in the first.

# Errors only: pip warns once for each package that a further index does not have. Bytecode is made
# of what is imported, where that is looked for (scripts/test): of all packages it takes pip as long
# as installing them.
pip_install() { # PYTHON ARGUMENTS...
    "$1" -m pip install -qq --no-compile --disable-pip-version-check "${@:2}"
}

environment() { # FOLDER EXTRAS [COMMAND]: a fresh environment, or the one that is still right
    local venv=$1 extras=$2 finish=${3:-:} python=${PYTHON:-python3}
    local stamp=$venv/qdqbridge.stamp wanted
    wanted="$PWD $(cat pyproject.toml scripts/environment.sh | cksum)"
    [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && return
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "error: qdqbridge needs Python 3.10 or newer; set PYTHON to one" >&2
        return 1
    fi
    echo "installing into $venv" >&2
    "$python" -m venv "$venv"
    # 21.3 is the first pip that can install a pyproject.toml project in editable mode.
    pip_install "$venv/bin/python" 'pip>=21.3'
    pip_install "$venv/bin/python" -e ".[$extras]"
    "$finish" "$venv/bin/python"
    echo "$wanted" >"$stamp"
}

# The last wheel with a complete Relay is tagged for CPython 3.10, but what is in it also runs on
# newer Pythons, where TVM reaches its library through ctypes and not through a compiled module.
install_relay() { # PYTHON
    local site
    site=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    pip_install "$1" --upgrade --no-deps \
        --only-binary :all: --python-version 3.10 --implementation cp --abi cp310 \
        --platform manylinux1_x86_64 --target "$site" 'hhb-tvm==3.2.3'
    echo 'import os; os.environ.setdefault("TVM_FFI", "ctypes")' >"$site/tvm_ffi_ctypes.pth"
}

# Arm's programs for TOSA need an older NumPy and bring a package `tests`. So they have an environment
# inside the one of the engines, and only the programs are beside the outer Python.
install_tosa() { # PYTHON
    local bin=${1%/python} name
    "$1" -m venv "$bin/../tosa"
    pip_install "$bin/../tosa/bin/python" tosa-tools==2026.8 tosa-converter-for-tflite==2026.2
    for name in tosa-converter-for-tflite tosa-opt tosa_reference_model; do
        ln -sf "../tosa/bin/$name" "$bin/$name"
    done
}

main_environment() {
    local folder=${QDQBRIDGE_VENV:-$PWD/.venv}
    environment "$folder" relax,gate
    venv_python=$folder/bin/python
}

engines_environment() {
    local folder=${QDQBRIDGE_ENGINES_VENV:-$PWD/.venv-engines}
    environment "$folder" relax,gate,engines install_tosa
    engines_python=$folder/bin/python
}

relay_environment() {
    local folder=${QDQBRIDGE_RELAY_VENV:-$PWD/.venv-relay} python
    for python in "${PYTHON:-python3}" python3.12 python3.11 python3.10 ''; do
        # NumPy 1, which TVM 0.16 needs, ends with Python 3.12.
        "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 13))' 2>/dev/null && break
    done
    if [[ -z $python ]]; then
        echo "error: Relay needs a Python from 3.10 to 3.12; set PYTHON to one" >&2
        return 1
    fi
    PYTHON=$python environment "$folder" relay,relay-test install_relay
    relay_python=$folder/bin/python
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
