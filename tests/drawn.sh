#!/bin/sh
# drawn.sh NAME COMMAND ..: runs a long test. LUATTN_TEST_SEED selects one long test in eight; without a seed
# all run.
if [ -n "${LUATTN_TEST_SEED-}" ]; then
  number=$(printf '%s %s' "$LUATTN_TEST_SEED" "$1" | cksum | cut -d ' ' -f 1)
  if [ $((number % 8)) != 0 ]; then
    echo "skipped: $1 is long, and the seed $LUATTN_TEST_SEED does not draw it; ./bootstrap test --all runs it"
    exit 77
  fi
fi
shift
exec "$@"
