#!/bin/sh
# drawn.sh PARTS PLACE NAME COMMAND ..: runs a test that one tree in PARTS runs. LUATTN_TEST_SEED, the hash of the tree, draws one of the PARTS
# tests that are registered after each other, so that of each kind some run for every tree; without a seed all run. PLACE counts the tests
# with as many parts (luattn_drawn in tests/CMakeLists.txt).
parts=$1 place=$2 name=$3
case $place in *[!0-9]*) echo "drawn.sh: '$place' is no number: register the test by luattn_drawn_test"; exit 1 ;; esac
shift 3
if [ -n "${LUATTN_TEST_SEED-}" ]; then
  number=$(printf '%s %s %s' "$LUATTN_TEST_SEED" "$parts" "$((place / parts))" | cksum | cut -d ' ' -f 1)
  if [ $((number % parts)) != $((place % parts)) ]; then
    echo "skipped: the seed $LUATTN_TEST_SEED does not draw $name, which one tree in $parts runs; ./bootstrap test --all runs it"
    exit 77
  fi
fi
exec "$@"
