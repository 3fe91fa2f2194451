# draw.awk: prints the names of the drawn tests (tests/drawn.sh) that a tree runs; -v show=1: their family and seconds before each.
#
#   awk -v seed=SEED [-v most=SECONDS] -f draw.awk costs.txt BUILD/tests/drawn_tests.txt
#
# The second file has the parts and the name of each test, as luattn_drawn_test registered it. Of each family in costs.txt one test
# is drawn, of all others as many as `most` seconds allow; the weight of a test is 1 / parts. A test of 0 s is drawn by one seed in
# `parts`, beside all that: what takes time only on machines that CI does not have. The family `never` is not drawn at all.
# -v check=1 draws nothing: it fails if a family has no test, or there are tests that no seed could draw.
function number(text,   i, h) { # in (0, 1), from the seed and the text
  h = 17
  for (i = 1; i <= length(text); i++) h = (h * 31 + code[substr(text, i, 1)]) % PRIME
  for (i = 0; i < 4; i++) h = mixed(h)
  return (h + 1) / (PRIME + 1)
}
function mixed(h,   low) { # all products stay below 2^53
  low = h % 67108864
  return (low * low + h * 48271 + 11) % PRIME
}
# Chooses what still fits: the cheapest of each family that has none yet stays possible.
function least_of_others(family,   f, sum) {
  for (f in cheapest) if (f != family && !(f in has)) sum += cheapest[f]
  return sum + 0
}
function take(i) {
  chosen[i] = 1
  has[family[i]] = 1
  spent += seconds[i]
}
# Sorts order[1..n] by key: a heap would be longer, and this takes a tenth of a second.
function sort(n,   gap, i, j, x) {
  for (gap = int(n / 2); gap > 0; gap = int(gap / 2))
    for (i = gap + 1; i <= n; i++) {
      x = order[i]
      for (j = i; j > gap && key[order[j - gap]] > key[x]; j -= gap) order[j] = order[j - gap]
      order[j] = x
    }
}
BEGIN {
  PRIME = 2147483647
  if (most == "") most = 188
  for (i = 1; i < 128; i++) code[sprintf("%c", i)] = i
}
FILENAME == ARGV[1] {
  if ($0 ~ /^#/ || NF != 3) next
  row_seconds[++rows] = $1
  row_family[rows] = $2
  row_names[rows] = "^(" $3 ")$"
  next
}
{
  parts[++tests] = $1
  name[tests] = $2
  family[tests] = "others"
  seconds[tests] = 6 # not recorded
  for (r = 1; r <= rows; r++)
    if ($2 ~ row_names[r]) {
      family[tests] = row_family[r]
      seconds[tests] = row_seconds[r]
      break
    }
  of_family[family[tests]]++
  if (family[tests] == "never") next
  u = number(seed " " $2)
  if (seconds[tests] == 0) {
    if (u * $1 < 1) chosen[tests] = 1
    next
  }
  key[tests] = -log(u) * $1
  order[++n] = tests
  if (!(family[tests] in cheapest) || seconds[tests] < cheapest[family[tests]]) cheapest[family[tests]] = seconds[tests]
}
function check_all(   r, f, sum, k, i, failed) {
  for (r = 1; r <= rows; r++)
    if (!(row_family[r] in of_family)) {
      print row_family[r] ": no test is drawn of this family; take its lines out of tests/costs.txt"
      failed = 1
    }
  for (f in cheapest) sum += cheapest[f]
  for (k = 1; k <= n; k++) {
    i = order[k]
    if (sum - cheapest[family[i]] + seconds[i] <= most) continue
    print name[i] ": takes " seconds[i] " s, and no seed could draw it beside one of each family in " most " s; make it faster"
    failed = 1
  }
  exit failed
}
END {
  if (check) check_all()
  sort(n)
  for (k = 1; k <= n; k++) {
    i = order[k]
    if (family[i] in has) continue
    if (seconds[i] == cheapest[family[i]] || spent + seconds[i] + least_of_others(family[i]) <= most) take(i)
  }
  for (k = 1; k <= n; k++)
    if (!(order[k] in chosen) && spent + seconds[order[k]] <= most) take(order[k])
  for (i = 1; i <= tests; i++)
    if (i in chosen) print (show ? family[i] " " seconds[i] " " : "") name[i]
}
