#!/bin/sh
# run.sh PYTHON TEST.py [ARGUMENT ..]: runs a test of the package, with build/venv's Python where ./bootstrap test-python has made that, which has NumPy
# and torch; else with PYTHON. What needs a package that is not there is skipped (77).
python=$1
venv=$(dirname "$0")/../../build/venv/bin/python
[ -x "$venv" ] && python=$venv
shift
exec "$python" -B "$@"
