#!/bin/sh
# drawn.sh BUILD NAME COMMAND ..: runs a test that not every tree runs. LUATTN_TEST_SEED, the hash of the tree, draws those that run, of each family
# one and of all as many as tests/costs.txt has time for (draw.awk); without a seed all run. The first test of a seed draws, into files of
# BUILD/tests/drawn; the others start no program where they skip: most of all tests end here.
build=$1 name=$2
shift 2
if [ -n "${LUATTN_TEST_SEED-}" ]; then
  drawn=$build/tests/drawn/$LUATTN_TEST_SEED
  if [ ! -d "$drawn" ]; then
    here=$(dirname "$0") part=$drawn.$$
    mkdir -p "$part"
    names=$(awk -v seed="$LUATTN_TEST_SEED" -f "$here/draw.awk" "$here/costs.txt" "$build/tests/drawn_tests.txt") || exit 1
    (cd "$part" && touch $names) || exit 1
    mv -T "$part" "$drawn" 2>/dev/null || rm -r "$part" # another test was first
  fi
  if [ ! -e "$drawn/$name" ]; then
    echo "skipped: the seed $LUATTN_TEST_SEED does not draw $name; ./bootstrap test --all runs it"
    exit 77
  fi
fi
exec "$@"
