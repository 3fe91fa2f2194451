#!/usr/bin/env bash
# costs.sh registered|measured|record BUILD [COSTS]: keeps the time that tests take which run for every tree (tests/costs.txt).
#
#   registered  fails if a test is neither drawn (tests/drawn.sh) nor in a line of COSTS, a line has no test, a line of one test takes over
#               MOST_ONE seconds, or all lines together take over MOST_ALL; or what is drawn cannot be (draw.awk)
#   measured    compares the last run of ctest with COSTS: fails if the tests of a line took over four times as long, and 20 s more. Where all
#               tests took longer than recorded, as on another or a busy machine, each may by as much
#   record      prints COSTS with the seconds of the last run
set -euo pipefail
MOST_ALL=180 MOST_ONE=20
what=$1 build=$2 costs=${3:-$(dirname "$0")/costs.txt}
export LC_ALL=C

# Every registered test: its name, and whether it is drawn.
registered() {
  find -L "$build/tests" "$build/examples" -name CTestTestfile.cmake -exec sed -n \
    's/^add_test(\(\[=*\[\)\{0,1\}"\{0,1\}\([^]" ]*\)"\{0,1\}\(]=*]\)\{0,1\} "\([^"]*\)".*/\2 \4/p' {} + |
    awk '{ print $1, ($2 ~ /\/tests\/drawn\.sh$/ ? "drawn" : "always") }'
}

# Every test of the last run that was neither skipped nor left out: its name and seconds.
measured() {
  awk '/^[0-9]+\/[0-9]+ Testing: / { name = $3 } /^Test time = / { seconds = $4 } /^Test Passed\.|^Test Failed\./ { print name, seconds }' \
    "$build/Testing/Temporary/LastTest.log"
}

drawn=$build/tests/drawn_tests.txt
[ "$what" != registered ] || [ ! -f "$drawn" ] || awk -v check=1 -f "$(dirname "$0")/draw.awk" "$costs" "$drawn"
registered >"${TMPDIR:-/tmp}/luattn-costs-$$.all"
trap 'rm -f "${TMPDIR:-/tmp}/luattn-costs-$$".*' EXIT
[ "$what" = registered ] || measured >"${TMPDIR:-/tmp}/luattn-costs-$$.run"
[ "$what" != registered ] || : >"${TMPDIR:-/tmp}/luattn-costs-$$.run"
awk -v what="$what" -v most_all="$MOST_ALL" -v most_one="$MOST_ONE" '
  function wrong(text) { print text; failed = 1 }
  FILENAME == ARGV[1] { # a line of costs: seconds, and an expression of names
    if ($0 ~ /^#/ || NF != 2) { text[++rows] = $0; next } # three fields: drawn tests (tests/draw.awk)
    text[++rows] = ""
    recorded[++lines] = $1
    names[lines] = $2
    row[rows] = lines
    next
  }
  FILENAME == ARGV[2] {
    kinds[$1 ~ /^ptx\./ ? "ptx" : $1 ~ /^python\./ ? "python" : $1 ~ /hosted/ ? "hosted" : "any"] = 1
    if ($2 == "drawn") { is_drawn[$1] = 1; next }
    for (i = 1; i <= lines && $1 !~ "^(" names[i] ")$"; i++) continue
    line_of[$1] = i
    if (i > lines) wrong($1 ": is in no line of tests/costs.txt; give it one with the seconds that it takes, or draw it (tests/drawn.sh)")
    tests[i]++
    next
  }
  {
    if ($1 in is_drawn) drew += $2
    i = line_of[$1]
    if (i == 0 || i > lines) next
    ran[i]++
    took[i] += $2
  }
  END {
    complete = ("ptx" in kinds) && ("python" in kinds) && ("hosted" in kinds) # this machine has a C++ compiler and Python
    for (i = 1; i <= lines; i++) {
      if (!tests[i] && complete) wrong(names[i] ": matches no test; take the line out of tests/costs.txt")
      if (tests[i] == 1 && recorded[i] > most_one) wrong(names[i] ": takes " recorded[i] " s in every run, and " most_one " are allowed; draw it, or a part of it")
      all += recorded[i]
      if (ran[i] == tests[i] && ran[i] > 0) { known += recorded[i]; whole += took[i] }
    }
    if (what == "registered") {
      if (all > most_all) wrong("tests that always run take " all " s of one core, and " most_all " are allowed; draw some")
      if (!failed) print all " s of " most_all
    }
    if (what == "record") {
      for (r = 1; r <= rows; r++) {
        if (!(r in row)) print text[r]
        else printf "%.1f %s\n", took[row[r]], names[row[r]]
      }
    }
    if (what == "measured") {
      factor = known > 0 && whole > known ? whole / known : 1
      printf "tests that always run: %.0f s of one core, recorded are %.0f; drawn ones: %.0f s\n", whole, known, drew
      for (i = 1; i <= lines; i++)
        if (ran[i] == tests[i] && took[i] > 4 * factor * recorded[i] + 20)
          wrong(sprintf("%s: took %.1f s, and %.1f are recorded in tests/costs.txt: make it faster, draw it, or record what it takes", names[i], took[i], recorded[i]))
    }
    exit failed
  }' "$costs" "${TMPDIR:-/tmp}/luattn-costs-$$.all" "${TMPDIR:-/tmp}/luattn-costs-$$.run"
