/* linear_spec.c: prints spec.cuh of linear attention, in the order of templates/contract/linear.cuh. */
#include <string.h>

#include "gen/emit/linear_writer.h"

/* What a function of the contract is of besides a token. */
typedef enum reach { OF_TOKEN, OF_CHANNEL, OF_ELEMENT } reach;

/* A function of the contract: a number of a token, of its channel d, or of one element x there. */
static void function(writer *w, const char *name, reach of, ir_ref r) {
  if (r == IR_NONE) return;
  linear_open_function(w, writer_format(w, "float %s(" LINEAR_SITE "%sint t%s)", name,
                                        of == OF_ELEMENT ? "float x, " : "", of != OF_TOKEN ? ", int d" : ""));
  body_return(w, r);
  linear_close_function(w);
}

/* Where a decay of channels lies that is an element of an input of float: kernels that erase step from token to token. */
static void print_decay_place(writer *w, const linear_lowered *f) {
  const ir *const g = w->f->g;
  if (f->backward || f->read == IR_NONE || f->decay_of != LINEAR_DECAY_CHANNEL) return;
  const ir_node *const n = ir_get(g, f->decay);
  if (n->op != IR_LOAD || n->type != IR_REAL || n->nargs < 1 || ir_index_of(n) >= SPEC_INPUT_TANGENT) return;
  if (strcmp(writer_input_type(w, ir_index_of(n)), "float") != 0) return;
  for (int i = 0; i < n->nargs; i++)
    if (ir_get(g, n->arg[i])->op != IR_VAR) return;
  if (!ir_is_var(g, n->arg[n->nargs - 1], VAR_D)) return;
  linear_open_function(w, "const float *decay_place(" LINEAR_SITE "int t, int d)");
  body_lines(w, n->arg, n->nargs);
  text_add(&w->out, "return input_at<float>(p.inputs.input[%u]", ir_index_of(n));
  body_index(w, ir_index_of(n), n->arg, n->nargs);
  text_add(&w->out, ");\n");
  linear_close_function(w);
}

/* A struct, or the name of what lacks all of it. */
static const char *part(writer *w, const char *name, const char *absent, bool any, const char *constants) {
  if (!any) return absent;
  text_add(&w->out, "\nstruct %s {\n", name);
  w->out.indent++;
  text_add(&w->out, "static constexpr %s;\n", constants);
  return name;
}

static void close(writer *w, bool any) {
  if (!any) return;
  w->out.indent--;
  text_add(&w->out, "};\n");
}

static const char *flag(ir_ref r) { return r != IR_NONE ? "true" : "false"; }

/* Hooks of rows and gradients; returns their names in Spec. */
static const char *print_hooks(writer *w, const linear_lowered *f) {
  static const char *const of[] = {"Query", "Key", "Value"};
  const char *names = "";
  for (int i = 0; i < 3; i++) {
    const linear_row_hook *row = &f->row[i];
    const char *const name = row->made ? writer_format(w, "Spec%s", of[i]) : "NoRowHook";
    w->names = row->of_queries ? linear_of_queries : linear_of_values;
    if (row->made) linear_print_row(w, name, row, f->backward);
    names = writer_format(w, "%s  using %s = %s;\n", names, of[i], name);
  }
  w->names = linear_of_values;
  if (!f->backward) return names;
  const bool skips = f->skip != IR_NONE, decays = f->of_decay.count > 0, writes = f->of_write.count > 0,
             reads = f->of_read.count > 0;
  if (skips) linear_print_row(w, "SkipRow", &f->skipped, true);
  if (decays) linear_print_number(w, "DecayTerms", &f->of_decay, f->sole);
  if (writes) linear_print_number(w, "WriteTerms", &f->of_write, f->sole);
  if (reads) linear_print_number(w, "ReadTerms", &f->of_read, f->sole);
  return writer_format(w,
                       "%s  using Skipped = %s;\n  using OfDecay = %s;\n  using OfWrite = %s;\n  using OfRead = %s;\n",
                       names, skips ? "SkipRow" : "NoRowHook", decays ? "DecayTerms" : "NoRowHook",
                       writes ? "WriteTerms" : "NoRowHook", reads ? "ReadTerms" : "NoRowHook");
}

static void print(writer *w, const void *of) {
  const linear_lowered *const f = of;
  static const char *const decays[] = {"DECAY_NONE", "DECAY_HEAD", "DECAY_TOKEN", "DECAY_CHANNEL"};
  const bool updates = f->write != IR_NONE || f->read != IR_NONE;
  const bool has_mods = f->query_factor != IR_NONE || f->key_factor != IR_NONE || f->value_mod != IR_NONE;
  linear_print_head(w, "linear.cuh", "float", f->backward);
  w->names = linear_of_values;
  const char *const decay = part(w, "SpecDecay", "NoDecay", f->decay != IR_NONE,
                                 writer_format(w, "DecayOf decay_of = %s", decays[f->decay_of]));
  function(w, "decay", f->decay_of == LINEAR_DECAY_CHANNEL ? OF_CHANNEL : OF_TOKEN, f->decay);
  print_decay_place(w, f);
  close(w, f->decay != IR_NONE);
  const char *const update = part(w, "SpecUpdate", "PlainUpdate", updates,
                                  writer_format(w, "bool has_write = %s, erases = %s", flag(f->write), flag(f->read)));
  function(w, "write", f->writes_channels ? OF_CHANNEL : OF_TOKEN, f->write);
  function(w, "read", f->reads_rows ? OF_ELEMENT : OF_TOKEN, f->read);
  function(w, "erase", OF_ELEMENT, f->erase);
  close(w, updates);
  const char *const mods = part(w, "SpecRowMods", "NoRowMods", has_mods,
                                writer_format(w, "bool has_query_factor = %s, has_key_factor = %s, has_value_mod = %s",
                                              flag(f->query_factor), flag(f->key_factor), flag(f->value_mod)));
  w->names = linear_of_queries;
  function(w, "query_factor", OF_TOKEN, f->query_factor);
  function(w, "key_factor", OF_TOKEN, f->key_factor);
  w->names = linear_of_values;
  function(w, "value_mod", OF_ELEMENT, f->value_mod);
  close(w, has_mods);
  const bool skips = f->skip != IR_NONE && !f->backward; /* the last kernel of backward has its derivative */
  const char *const skip = part(w, "SpecSkip", "NoSkip", skips, "bool has_skip = true");
  if (skips) function(w, "skip", OF_ELEMENT, f->skip);
  close(w, skips);
  text_add(&w->out, "\n");
  if (f->row[0].made || f->row[1].made || f->row[2].made) text_add(&w->out, "#define LUATTN_MAKES_ROWS\n");
  const char *const rows = print_hooks(w, f);
  text_add(&w->out, "\nstruct Spec : %s, %s, %s, %s {\n%s};\n", decay, update, mods, skip, rows);
}

luattn_status emit_linear_spec(const linear_lowered *l, const char **out, luattn_error *err) {
  const linear_text whole = {
      .a = l->a, .g = l->g, .spec = l->spec, .packed = l->packed, .deterministic = true, .print = print, .of = l};
  return linear_print_text(&whole, out, err);
}
