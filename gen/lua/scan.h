/* scan.h: checks on the source text before Lua runs it. */
#ifndef LUATTN_GEN_LUA_SCAN_H
#define LUATTN_GEN_LUA_SCAN_H

#include "gen/base/text.h"

/* == and ~= between a traced value and a number never call a metamethod: Lua answers false. A spec may use
 * them only next to a string, nil or boolean literal. Fills `message` (of `size` bytes) and returns the line
 * of the first other use; 0: none. */
int scan_equality(const char *source, size_t source_size, char *message, size_t size);

/* The line of the first use of a name, as a variable, a field or a label; 0: none. */
int scan_find_name(const char *source, size_t source_size, const char *name);

/* The line of a field `name = ..` of a table; 0: there is none, or several. */
int scan_find_field(const char *source, size_t source_size, const char *name);

/* Whether a `not` of this line binds only the left side of a comparison: not a < b is (not a) < b. */
bool scan_negates_side(const char *source, size_t source_size, int line);

#define SCAN_GUARD "__table"

/* Copies the source with every table constructor {..} written as a call of SCAN_GUARD, which guards the
 * table: a plain table indexed by a traced value would silently give nil. Line numbers stay the same. False:
 * braces do not match. */
bool scan_guard_tables(const char *source, size_t source_size, text *out);

#define SCAN_TRUTH "__truth"

/* Copies the source with what Lua asks for its truth handed to SCAN_TRUTH, which refuses numbers of a trace and
 * functions, of which each is true: the left sides of `and` and `or`, what `not` negates, the conditions of if and
 * while, and what == and ~= compare with true, false or a string. What ends as a call does has a second argument. Line
 * numbers stay the same. False: out of memory, or nested too deeply. */
bool scan_truths(arena *a, const char *source, size_t source_size, text *out);

#define SCAN_CONDITION "__condition"

/* Copies the source with each where(a < b, x, y) written as where(__condition(function() return a < b end),
 * x, y), and returns how many these are. 0, and nothing is copied: none can be, or the file may have another
 * `where` or __condition of its own. Line numbers stay the same. */
int scan_conditions(const char *source, size_t source_size, text *out);

bool scan_is_keyword(const char *name);

/* Returns the line of a number that Lua reads as another, and writes what is wrong with it to message; 0: there is
 * none. */
int scan_numbers(const char *source, size_t source_size, char *message, size_t size);

#endif
