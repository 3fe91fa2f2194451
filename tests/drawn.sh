#!/bin/sh
# drawn.sh PARTS PLACE NAME COMMAND ..: runs a test that one tree in PARTS runs. LUATTN_TEST_SEED, the hash of the tree, draws one of the PARTS
# tests that are registered after each other, so that of each kind some run for every tree; without a seed all run. PLACE counts the tests
# with as many parts (luattn_drawn in tests/CMakeLists.txt). Starts no other program where it skips: most of all tests end here.
parts=$1 place=$2 name=$3
case $place in *[!0-9]*) echo "drawn.sh: '$place' is no number: register the test by luattn_drawn_test"; exit 1 ;; esac
shift 3
if [ -n "${LUATTN_TEST_SEED-}" ]; then
  digits=${LUATTN_TEST_SEED%"${LUATTN_TEST_SEED#???????}"}
  case $digits in
    ???????) case $digits in *[!0-9a-f]*) digits='' ;; esac ;;
    *) digits='' ;;
  esac
  if [ -n "$digits" ]; then
    number=$((0x$digits))
  else # no hash of git's
    number=$(printf '%s' "$LUATTN_TEST_SEED" | cksum | cut -d ' ' -f 1)
  fi
  number=$(((number ^ place / parts * 0x9e3779b1 ^ parts * 0x85ebca6b) & 0xffffffff))
  number=$((((number ^ number >> 16) * 0x45d9f3b) & 0xffffffff))
  number=$((((number ^ number >> 16) * 0x45d9f3b) & 0xffffffff))
  if [ $(((number ^ number >> 16) % parts)) != $((place % parts)) ]; then
    echo "skipped: the seed $LUATTN_TEST_SEED does not draw $name, which one tree in $parts runs; ./bootstrap test --all runs it"
    exit 77
  fi
fi
exec "$@"
