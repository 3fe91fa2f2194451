#!/usr/bin/env bash
# locale_test.sh: checks that a decimal comma in the process's locale does not change what luattn prints,
# reads or writes. The environment names LUATTN (the program), SPEC, FAKE_NVRTC, SET_LOCALE (set_locale.c) and
# LOCPATH.
set -eu
[ -e "$LOCPATH/comma/LC_NUMERIC" ] || { echo "skipped: there is no locale 'comma' in $LOCPATH, as this machine has no localedef" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LUATTN_NVRTC=$FAKE_NVRTC LUATTN_LIBCUDA=/nonexistent/libcuda.so.1 LUATTN_CACHE_DIR=$work/cache

session() {
  "$LUATTN" emit "$SPEC" --stage spec --arch sm_80
  "$LUATTN" emit "$SPEC" --stage grad
  "$LUATTN" emit "$SPEC" --stage cubin --arch sm_80 >k.cubin
  "$LUATTN" mask "$SPEC" --shape 1,1,1,100,100,8
  mkdir arrays
  "$LUATTN" run "$SPEC" --shape 1,2,1,20,20,8 --set cap=20.5 --scale 0.25 --backward --device cpu --out arrays
  cksum arrays/*
  "$LUATTN" run "$SPEC" --q arrays/out.npy --k arrays/dk.npy --v arrays/dv.npy --device cpu
  "$LUATTN" check "$SPEC" --shape 1,1,1,10,10,4 --device cpu
  "$LUATTN" cache info
  "$LUATTN" run "$SPEC" --set cap=1,5 || echo "exit $?"
  "$LUATTN" run "$SPEC" --scale 0,5 || echo "exit $?"
  "$LUATTN" run "$SPEC" --scale 1e999 || echo "exit $?"
  "$LUATTN" run "$SPEC" --scale -1.5 || echo "exit $?"
}

run() { # folder, libraries
  rm -rf "$work/$1"
  mkdir "$work/$1"
  (cd "$work/$1" && LC_ALL=comma LD_PRELOAD=$2 && export LC_ALL LD_PRELOAD && session >said 2>&1) || true
  sed -i -E 's/[0-9.,]+ ms/N ms/g' "$work/$1/said"
}

run warm ''
run without ''
run with "$SET_LOCALE"
if ! diff -r "$work/without" "$work/with"; then
  echo 'a decimal comma in the process changes the above' >&2
  exit 1
fi
grep -q '^exit 1$' "$work/with/said" && grep -q 'Real(' "$work/with/said" # the session did work
