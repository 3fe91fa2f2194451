#!/bin/sh
# drawn.sh PARTS NAME COMMAND ..: runs a test of which LUATTN_TEST_SEED, the hash of the tree, selects one in PARTS; without a seed all run.
parts=$1
if [ -n "${LUATTN_TEST_SEED-}" ]; then
  number=$(printf '%s %s' "$LUATTN_TEST_SEED" "$2" | cksum | cut -d ' ' -f 1)
  if [ $((number % parts)) != 0 ]; then
    echo "skipped: the seed $LUATTN_TEST_SEED does not draw $2, which one tree in $parts runs; ./bootstrap test --all runs it"
    exit 77
  fi
fi
shift 2
exec "$@"
