# Sourced by the scripts beside it, from anywhere: goes to the checkout and makes the virtual
# environment, or reuses it, as long as pyproject.toml is the one it was made from.
#
#   QDQBRIDGE_VENV  where the environment is (default: .venv in the checkout)
#   PYTHON          the Python that makes it (default: python3)
#
# Sets $venv_python, the environment's own Python.

make_environment() {
    local python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "error: qdqbridge needs Python 3.10 or newer; set PYTHON to one" >&2
        return 1
    fi
    echo "installing into $venv" >&2
    "$python" -m venv "$venv"
    # 21.3 is the first pip that can install a pyproject.toml project in editable mode.
    "$venv_python" -m pip install --quiet --disable-pip-version-check 'pip>=21.3'
    "$venv_python" -m pip install --quiet --disable-pip-version-check -e '.[relax,test]'
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${QDQBRIDGE_VENV:-$PWD/.venv}
venv_python=$venv/bin/python
stamp=$venv/qdqbridge.stamp
wanted="$PWD $(cksum <pyproject.toml)"
if [[ ! -f $stamp || $(<"$stamp") != "$wanted" ]]; then
    make_environment
    echo "$wanted" >"$stamp"
fi
