/* spec_struct.c: prints the frame of a struct of Spec: bases for what it lacks, and constants. */
#include <stdio.h>
#include <string.h>

#include "gen/emit/sections.h"

enum { COLUMNS = 110 };

void open_struct(writer *w, const char *name, const char *base, const absence *lacks, int n) {
  text_add(&w->out, "struct %s", name);
  const char *glue = " : ";
  if (base != NULL) {
    text_add(&w->out, "%s%s", glue, base);
    glue = ", ";
  }
  for (int i = 0; i < n; i++) {
    if (!lacks[i].holds) continue;
    text_add(&w->out, "%s%s", glue, lacks[i].type);
    glue = ", ";
  }
  text_add(&w->out, " {\n");
  w->out.indent++;
}

void close_struct(writer *w) {
  const text *t = &w->out;
  const bool empty = !t->failed && memcmp(t->data + t->size - 2, "{\n", 2) == 0;
  w->out.indent--;
  if (empty) w->out.size--; /* on one line */
  text_add(&w->out, "};\n");
}

void print_constants(writer *w, const char *type, const constant *c, int n) {
  const bool is_flag = strcmp(type, "bool") == 0;
  size_t column = 0;
  for (int i = 0; i < n; i++) {
    if (c[i].absent) continue;
    char value[16];
    snprintf(value, sizeof value, "%d", c[i].value);
    const char *shown = !is_flag ? value : c[i].value != 0 ? "true" : "false";
    const size_t width = strlen(c[i].name) + strlen(shown) + strlen(", = ");
    if (column > 0 && column + width < COLUMNS) {
      text_add(&w->out, ", %s = %s", c[i].name, shown);
    } else {
      if (column > 0) text_add(&w->out, ";\n");
      text_add(&w->out, "static constexpr %s %s = %s", type, c[i].name, shown);
      column = strlen("  static constexpr  ") + strlen(type);
    }
    column += width;
  }
  if (column > 0) text_add(&w->out, ";\n");
}

void print_table(writer *w, const char *type, const char *name, const char *const *values, int n,
                 const char *otherwise) {
  text_add(&w->out, "static constexpr __device__ %s %s(int i) { return ", type, name);
  for (int i = 0; i < n; i++) text_add(&w->out, "i == %d ? %s : ", i, values[i]);
  text_add(&w->out, "%s; }\n", otherwise);
}

void open_function(writer *w, const char *signature) {
  text_add(&w->out, "LUATTN_FN %s {\n", signature);
  w->body = w->out.size;
  w->out.indent++;
}

void close_function(writer *w) {
  offsets_close(w);
  w->out.indent--;
  text_add(&w->out, "}\n");
}

void return_array(writer *w, const ir_ref *values, int n) {
  body_lines(w, values, n);
  text_add(&w->out, "return {");
  for (int i = 0; i < n; i++)
    text_add(&w->out, i == 0 ? "{%s" : ", %s", values[i] == IR_NONE ? "Real(0)" : body_value(w, values[i]));
  text_add(&w->out, n > 0 ? "}};\n" : "};\n");
}

void expression_function(writer *w, const char *name, const char *signature, int has, const char *state,
                         const char *element, ir_ref r) {
  const char *call = NULL;
  if (lowered_is_called(w->f, name)) {
    outline_open(w, writer_type(w, r), name, has, state, &r, 1, 0);
    body_return(w, r);
    call = outline_close(w);
  }
  open_function(w, signature);
  body_begin(w, has, state);
  w->element = element;
  if (call != NULL)
    text_add(&w->out, "return %s;\n", call);
  else
    body_return(w, r);
  close_function(w);
}
