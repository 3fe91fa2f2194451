#!/bin/sh
# check_functions.sh ROOT [MOST]: checks that no function of C and C++ has more than MOST lines, by default 60, without the rows of its
# arrays. Reads the layout of ./bootstrap format: a function ends with the next } at the start of a line. Kernels, in templates/, are not asked.
cd "$1" || exit 1
files=$(find abi bench cli common engine examples gen include parallel runtime tests xla -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' 2>/dev/null | sort)
[ -n "$files" ] || { echo "$1: there is nothing to check"; exit 1; }
# shellcheck disable=SC2086
awk -v most="${2-60}" '
  FNR == 1 { head = ""; start = 0; table = "" }
  start == 0 && /^[A-Za-z_]/ { head = $0; at = FNR }
  start == 0 && /^ / && head != "" { head = head $0 }
  start == 0 && (/[;}]$/ || (/\{$/ && (head !~ /\(/ || head ~ /= [({]/))) { head = "" }
  start == 0 && head ~ /\{$/ { start = at; rows = 0; next }
  start > 0 && table == "" && /\] = \{/ && !/;$/ { match($0, /^ */); table = substr($0, 1, RLENGTH) }
  start > 0 && table != "" { ++rows; if (/\};$/) table = "" }
  start > 0 && /^}/ {
    ++functions
    lines = FNR - start + 1 - rows
    if (lines > most) { ++long; printf "%s:%d: a function of %d lines, expected at most %d; split it where each part has a name\n", FILENAME, start, lines, most }
    start = 0; head = ""; table = ""
  }
  END { if (functions == 0) { print "found no function"; exit 1 } print functions " functions checked"; exit long > 0 }' $files
