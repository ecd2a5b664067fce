/* Runs a template: expressions and statements. */
#include "text/template/jinja.h"

#include <math.h>
#include "base/alloc.h"

typedef const struct jinja_node *node;

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
static enum flow run_exec(struct jinja_run *r, node list);

/* --- expressions --- */

static struct jinja_value run_name(struct jinja_run *r, const struct jinja_value *name) {
  for (const struct jinja_frame *f = r->frame; f; f = f->up)
    for (size_t i = f->count; i-- > 0 && wn_jinja_step(r, 0);)
      if (jinja_same(&f->pairs[i].key, name)) return f->pairs[i].value;
  const struct jinja_spec *function = wn_jinja_function(name);
  struct jinja_method *m = function ? wn_jinja_memory(r, 1, sizeof *m) : NULL;
  if (!m) return (struct jinja_value){.as.text = name->as.text, .count = name->count};
  *m = (struct jinja_method){.spec = function};
  return (struct jinja_value){.kind = JINJA_METHOD, .as.method = m};
}

static struct jinja_value run_operands(struct jinja_run *r, const char *what, const struct jinja_value *a,
                                       const struct jinja_value *b) {
  const struct jinja_value *v = a->kind == JINJA_UNDEFINED ? a : b;
  if (v->kind == JINJA_UNDEFINED)
    return wn_jinja_fail(r, WN_ERR_FORMAT, "'%.*s' is undefined, and an operand of %s", (int)v->count,
                         v->count ? v->as.text : "", what);
  return wn_jinja_fail(r, WN_ERR_FORMAT, "unsupported operands of %s: '%s' and '%s'", what, wn_jinja_kind(a),
                       wn_jinja_kind(b));
}

static struct jinja_value run_whole(struct jinja_run *r, char op, int64_t x, int64_t y) {
  int64_t z = 0;
  bool over = false;
  switch (op) {
  case '+':
    over = __builtin_add_overflow(x, y, &z);
    break;
  case '-':
    over = __builtin_sub_overflow(x, y, &z);
    break;
  case '*':
    over = __builtin_mul_overflow(x, y, &z);
    break;
  case 'p':
    if (y < 0) return jinja_float(pow((double)x, (double)y));
    z = 1;
    for (int64_t i = 0; i < y && !over && wn_jinja_step(r, 0); i++) over = __builtin_mul_overflow(z, x, &z);
    break;
  default: /* 'd', '%': rounded down */
    if (y == 0) return wn_jinja_fail(r, WN_ERR_FORMAT, "division by zero");
    if (y == -1) {
      over = op == 'd' && __builtin_sub_overflow(0, x, &z);
    } else {
      z = op == 'd' ? x / y : x % y;
      if (x % y != 0 && (x % y < 0) != (y < 0)) z += op == 'd' ? -1 : y;
    }
  }
  return over ? wn_jinja_fail(r, WN_ERR_FORMAT, "a number is beyond 64 bits") : jinja_int(z);
}

static struct jinja_value run_number(struct jinja_run *r, char op, const struct jinja_value *a,
                                     const struct jinja_value *b) {
  const double x = jinja_real_of(a), y = jinja_real_of(b);
  if (op != '/' && jinja_whole(a) && jinja_whole(b)) return run_whole(r, op, jinja_whole_of(a), jinja_whole_of(b));
  if (y == 0 && strchr("/d%", op)) return wn_jinja_fail(r, WN_ERR_FORMAT, "division by zero");
  return jinja_float(op == '+'   ? x + y
                     : op == '-' ? x - y
                     : op == '*' ? x * y
                     : op == '/' ? x / y
                     : op == 'd' ? floor(x / y)
                     : op == '%' ? x - y * floor(x / y)
                                 : pow(x, y));
}

/* Texts and lists one after the other. */
static struct jinja_value run_joined(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b,
                                     int64_t times) {
  struct jinja_buffer text = {.run = r};
  struct jinja_value out = *a;
  if (a->kind == JINJA_TEXT) {
    for (int64_t i = 0; i < times && wn_jinja_step(r, a->count); i++) wn_jinja_add_text(&text, a);
    if (b) wn_jinja_add_text(&text, b);
    return wn_jinja_done(&text);
  }
  const size_t more = b ? b->count : 0, most = r->left / sizeof out;
  const size_t repeats = times <= 0 || a->count == 0 ? 0 : (uint64_t)times > most ? most : (size_t)times;
  size_t bytes = 0;
  if (!wn_mul_size(repeats, a->count, &out.count) || !wn_add_size(out.count, more, &out.count) ||
      !wn_mul_size(out.count, sizeof out, &bytes))
    out.count = SIZE_MAX / sizeof out;
  struct jinja_value *items = wn_jinja_memory(r, out.count, sizeof out);
  if (!items || !wn_jinja_step(r, bytes)) out.count = 0;
  for (size_t i = 0; i < out.count; i++)
    items[i] = i < out.count - more ? a->as.items[i % a->count] : b->as.items[i - (out.count - more)];
  out.as.items = items;
  return out;
}

static struct jinja_value run_binary(struct jinja_run *r, node n) {
  const struct jinja_value a = wn_jinja_eval(r, n->a), b = wn_jinja_eval(r, n->b);
  const char *text = n->op == 'd' ? "//" : n->op == 'p' ? "**" : (const char[]){(char)n->op, 0};
  r->line = n->line;
  if (n->op == '~') {
    struct jinja_buffer both = {.run = r};
    wn_jinja_write(&both, &a);
    wn_jinja_write(&both, &b);
    return wn_jinja_done(&both);
  }
  if (jinja_numeric(&a) && jinja_numeric(&b)) return run_number(r, (char)n->op, &a, &b);
  const bool sequence = a.kind == JINJA_TEXT || jinja_listed(&a);
  if (n->op == '+' && a.kind == b.kind && sequence) return run_joined(r, &a, &b, 1);
  if (n->op == '*' && sequence && jinja_whole(&b)) return run_joined(r, &a, NULL, jinja_whole_of(&b));
  return run_operands(r, text, &a, &b);
}

static struct jinja_value run_comparison(struct jinja_run *r, node n) {
  struct jinja_value a = wn_jinja_eval(r, n->a);
  bool holds = true;
  for (node next = n->b; next && holds && !r->failed; next = next->next) {
    const struct jinja_value b = wn_jinja_eval(r, next->a);
    r->line = n->line;
    const int op = next->op;
    if (op == COMPARE_EQ || op == COMPARE_NE) {
      holds = wn_jinja_equal(r, &a, &b) == (op == COMPARE_EQ);
    } else if (op == COMPARE_IN || op == COMPARE_NOT_IN) {
      holds = wn_jinja_contains(r, &b, &a) == (op == COMPARE_IN);
    } else if (a.kind == JINJA_UNDEFINED || b.kind == JINJA_UNDEFINED) {
      run_operands(r, "a comparison", &a, &b);
    } else {
      const int order = wn_jinja_order(r, &a, &b);
      holds = op == COMPARE_LT ? order < 0 : op == COMPARE_LE ? order <= 0 : op == COMPARE_GT ? order > 0 : order >= 0;
    }
    a = b;
  }
  return jinja_bool(holds);
}

static struct jinja_value run_items(struct jinja_run *r, node list, bool tuple) {
  size_t n = 0;
  for (node i = list; i; i = i->next) n++;
  struct jinja_value *items = wn_jinja_memory(r, n, sizeof *items), out = jinja_list(items, items ? n : 0);
  n = 0;
  for (node i = list; items && i; i = i->next) items[n++] = wn_jinja_eval(r, i);
  if (tuple) out.kind = JINJA_TUPLE;
  return out;
}

static struct jinja_value run_dict(struct jinja_run *r, node list) {
  struct jinja_frame f = {0};
  for (node i = list; i && !r->failed; i = i->next) {
    const struct jinja_value key = wn_jinja_eval(r, i->a), value = wn_jinja_eval(r, i->b);
    if (key.kind == JINJA_LIST || key.kind == JINJA_DICT)
      wn_jinja_fail(r, WN_ERR_FORMAT, "a %s is no key of a dict", wn_jinja_kind(&key));
    wn_jinja_set(r, &f, &key, &value);
  }
  return (struct jinja_value){.kind = JINJA_DICT, .as.pairs = f.pairs, .count = f.count};
}

/* v[begin:end:step], as Python counts. */
static struct jinja_value run_slice(struct jinja_run *r, node n) {
  const struct jinja_value v = wn_jinja_eval(r, n->a);
  const node bounds[3] = {n->b, n->c, n->d};
  int64_t at[3] = {0, 0, 1};
  bool given[3];
  for (int i = 0; i < 3; i++) {
    const struct jinja_value one = bounds[i] ? wn_jinja_eval(r, bounds[i]) : jinja_none();
    given[i] = one.kind != JINJA_NONE;
    if (given[i] && !jinja_whole(&one)) return run_operands(r, "a slice", &v, &one);
    if (given[i]) at[i] = jinja_whole_of(&one);
  }
  r->line = n->line;
  if ((v.kind != JINJA_TEXT && !jinja_listed(&v)) || at[2] == 0) return run_operands(r, "a slice", &v, &v);
  const bool text = v.kind == JINJA_TEXT, back = at[2] < 0;
  const struct jinja_value all = wn_jinja_items(r, &v);
  const int64_t count = (int64_t)all.count, step = at[2];
  for (int i = 0; i < 2; i++) {
    if (!given[i]) {
      at[i] = i == 0 ? (back ? count - 1 : 0) : back ? -1 : count;
      continue;
    }
    if (at[i] < 0) at[i] = at[i] < -count ? -1 : at[i] + count;
    const int64_t low = back ? -1 : 0, high = back ? count - 1 : count;
    at[i] = at[i] < low ? low : at[i] > high ? high : at[i];
  }
  if (text && step == 1 && at[0] < at[1] && !r->failed) {
    const char *base = v.as.text, *begin = all.as.items[at[0]].as.text;
    const struct jinja_value *last = &all.as.items[at[1] - 1];
    return wn_jinja_part(&v, (size_t)(begin - base), (size_t)(last->as.text + last->count - base));
  }
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  size_t taken = 0;
  for (int64_t i = at[0]; items && (back ? i > at[1] : i < at[1]); i += step) {
    items[taken++] = all.as.items[i];
    if (step > count || step < -count) break;
  }
  struct jinja_buffer b = {.run = r};
  for (size_t i = 0; text && i < taken; i++) wn_jinja_add_text(&b, &items[i]);
  return text ? wn_jinja_done(&b) : (struct jinja_value){.kind = v.kind, .as.items = items, .count = taken};
}

static void run_arg(struct jinja_run *r, struct jinja_args *args, const struct jinja_value *name,
                    const struct jinja_value *value) {
  if (args->count == sizeof args->at / sizeof *args->at) {
    wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "more than %d arguments", args->count);
    return;
  }
  args->at[args->count] = *value;
  args->names[args->count++] = name ? *name : (struct jinja_value){0};
}

/* Arguments, with those that *list and **dict stand for. */
static bool run_args(struct jinja_run *r, node list, struct jinja_args *args) {
  args->count = 0;
  for (node i = list; i && !r->failed; i = i->next) {
    const struct jinja_value v = wn_jinja_eval(r, i->a);
    const struct jinja_value items = i->op == '*' ? wn_jinja_items(r, &v) : jinja_list(NULL, 0);
    for (size_t k = 0; k < items.count && !r->failed; k++) run_arg(r, args, NULL, &items.as.items[k]);
    for (size_t k = 0; i->op == 'p' && v.kind == JINJA_DICT && k < v.count && !r->failed; k++)
      if (v.as.pairs[k].key.kind == JINJA_TEXT) run_arg(r, args, &v.as.pairs[k].key, &v.as.pairs[k].value);
    if (!i->op) run_arg(r, args, i->kind == NODE_NAME ? &i->value : NULL, &v);
  }
  return !r->failed;
}

static struct jinja_value run_macro(struct jinja_run *r, const struct jinja_macro *m, const struct jinja_args *args) {
  struct jinja_frame *before = r->frame, *f = wn_jinja_memory(r, 1, sizeof *f);
  struct jinja_buffer text = {.run = r}, *out = r->out;
  int at = 0, used = 0;
  if (!f) return (struct jinja_value){0};
  f->up = m->frame;
  r->frame = f;
  for (node p = m->node->a; p && !r->failed; p = p->next, at++) {
    struct jinja_value v = {.as.text = p->value.as.text, .count = p->value.count};
    bool found = false;
    for (int i = 0; i < args->count && !found; i++) {
      const bool named = args->names[i].kind == JINJA_TEXT;
      found = named ? jinja_same(&args->names[i], &p->value) : i == at;
      if (found) v = args->at[i], used++;
    }
    if (!found && p->a) v = wn_jinja_eval(r, p->a);
    wn_jinja_set(r, f, &p->value, &v);
  }
  if (used < args->count)
    wn_jinja_fail(r, WN_ERR_FORMAT, "the macro \"%.*s\" has no such argument", (int)m->node->value.count,
                  m->node->value.as.text);
  r->out = &text;
  run_exec(r, m->node->b);
  r->out = out;
  r->frame = before;
  return wn_jinja_done(&text);
}

static struct jinja_value run_call(struct jinja_run *r, node n) {
  const struct jinja_value what = wn_jinja_eval(r, n->a);
  struct jinja_args args;
  if (!run_args(r, n->b, &args)) return (struct jinja_value){0};
  r->line = n->line;
  if (what.kind == JINJA_MACRO) return run_macro(r, what.as.macro, &args);
  if (what.kind == JINJA_METHOD) return wn_jinja_call(r, what.as.method->spec, &what.as.method->self, &args);
  if (what.kind == JINJA_UNDEFINED)
    return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "the %s \"%.*s\" is not known", what.dotted ? "method" : "function",
                         (int)what.count, what.count ? what.as.text : "");
  return wn_jinja_fail(r, WN_ERR_FORMAT, "'%s' object is not callable", wn_jinja_kind(&what));
}

static struct jinja_value run_called(struct jinja_run *r, node n, const struct jinja_value *self) {
  struct jinja_args args;
  if (!run_args(r, n->b, &args)) return (struct jinja_value){0};
  r->line = n->line;
  const struct jinja_value out = wn_jinja_call(r, n->spec, self, &args);
  return n->kind == NODE_TEST ? jinja_bool(wn_jinja_true(&out) != (n->op == 1)) : out;
}

static struct jinja_value run_eval(struct jinja_run *r, node n) {
  struct jinja_value v, w;
  switch (n->kind) {
  case NODE_LITERAL:
    return n->value;
  case NODE_NAME:
    return run_name(r, &n->value);
  case NODE_LIST:
  case NODE_TUPLE:
    return run_items(r, n->a, n->kind == NODE_TUPLE);
  case NODE_DICT:
    return run_dict(r, n->a);
  case NODE_SLICE:
    return run_slice(r, n);
  case NODE_CALL:
    return run_call(r, n);
  case NODE_BINARY:
    return run_binary(r, n);
  case NODE_COMPARE:
    return run_comparison(r, n);
  default:
    break;
  }
  v = wn_jinja_eval(r, n->a);
  r->line = n->line;
  switch (n->kind) {
  case NODE_DOT:
    return wn_jinja_attribute(r, &v, &n->value);
  case NODE_ITEM:
    w = wn_jinja_eval(r, n->b);
    return wn_jinja_element(r, &v, &w);
  case NODE_FILTER:
  case NODE_TEST:
    return run_called(r, n, &v);
  case NODE_NOT:
    return jinja_bool(!wn_jinja_true(&v));
  case NODE_AND:
    return wn_jinja_true(&v) ? wn_jinja_eval(r, n->b) : v;
  case NODE_OR:
    return wn_jinja_true(&v) ? v : wn_jinja_eval(r, n->b);
  case NODE_CHOICE:
    return wn_jinja_true(&v) ? wn_jinja_eval(r, n->b) : n->c ? wn_jinja_eval(r, n->c) : (struct jinja_value){0};
  case NODE_SIGN:
    w = jinja_int(0);
    if (!jinja_numeric(&v)) return run_operands(r, "a sign", &v, &v);
    if (v.kind == JINJA_FLOAT) return jinja_float(n->op == '-' ? -v.as.real : v.as.real);
    return run_number(r, (char)n->op, &w, &v);
  default:
    return v;
  }
}

struct jinja_value wn_jinja_eval(struct jinja_run *r, const struct jinja_node *n) {
  struct jinja_value out = {0};
  if (wn_jinja_enter(r)) out = run_eval(r, n);
  wn_jinja_leave(r);
  return out;
}

/* --- statements --- */

static void run_assign(struct jinja_run *r, node target, const struct jinja_value *value) {
  if (target->kind == NODE_NAME) {
    wn_jinja_set(r, r->frame, &target->value, value);
  } else if (target->kind == NODE_DOT) {
    const struct jinja_value space = wn_jinja_eval(r, target->a);
    if (space.kind == JINJA_SPACE)
      wn_jinja_set(r, space.as.space, &target->value, value);
    else
      wn_jinja_fail(r, WN_ERR_FORMAT, "only attributes of a namespace can be set");
  } else {
    const struct jinja_value items = wn_jinja_items(r, value);
    size_t n = 0;
    for (node one = target->a; one; one = one->next, n++)
      if (n < items.count) run_assign(r, one, &items.as.items[n]);
    if (n != items.count) wn_jinja_fail(r, WN_ERR_FORMAT, "%zu values for %zu names", items.count, n);
  }
}

/* The items that the loop's condition keeps. */
static struct jinja_value run_kept(struct jinja_run *r, node n, struct jinja_value all, struct jinja_frame *f) {
  struct jinja_value *items = n->c ? wn_jinja_memory(r, all.count, sizeof *items) : NULL;
  size_t kept = 0;
  if (!n->c) return all;
  for (size_t i = 0; items && i < all.count && wn_jinja_step(r, 0); i++) {
    f->count = 0;
    run_assign(r, n->a, &all.as.items[i]);
    const struct jinja_value keep = wn_jinja_eval(r, n->c);
    if (wn_jinja_true(&keep)) items[kept++] = all.as.items[i];
  }
  return jinja_list(items, kept);
}

static void run_for(struct jinja_run *r, node n) {
  const struct jinja_value name = jinja_text("loop", 4), over = wn_jinja_eval(r, n->b);
  struct jinja_frame *f = wn_jinja_memory(r, 1, sizeof *f);
  struct jinja_loop *loop = wn_jinja_memory(r, 1, sizeof *loop);
  r->line = n->line;
  struct jinja_value all = wn_jinja_items(r, &over);
  if (!f || !loop) return;
  f->up = r->frame;
  r->frame = f;
  all = run_kept(r, n, all, f);
  *loop = (struct jinja_loop){.items = all.as.items, .count = all.count};
  const struct jinja_value own = {.kind = JINJA_LOOP, .as.loop = loop};
  for (; loop->at < all.count && wn_jinja_step(r, 0); loop->at++) {
    f->count = 0;
    wn_jinja_set(r, f, &name, &own);
    run_assign(r, n->a, &all.as.items[loop->at]);
    if (run_exec(r, n->d) == FLOW_BREAK) break;
  }
  r->frame = f->up;
  if (all.count == 0) run_exec(r, n->e);
}

static void run_set(struct jinja_run *r, node n) {
  struct jinja_value v;
  if (n->b) {
    v = wn_jinja_eval(r, n->b);
  } else {
    struct jinja_buffer text = {.run = r}, *out = r->out;
    struct jinja_frame *inner = wn_jinja_memory(r, 1, sizeof *inner), *before = r->frame;
    if (!inner) return;
    inner->up = before;
    r->out = &text, r->frame = inner;
    run_exec(r, n->c);
    r->out = out, r->frame = before;
    v = wn_jinja_done(&text);
    node filters[SET_FILTERS];
    int count = 0;
    for (node f = n->d; f && count < SET_FILTERS; f = f->a) filters[count++] = f;
    while (count > 0) v = run_called(r, filters[--count], &v);
  }
  run_assign(r, n->a, &v);
}

static void run_define(struct jinja_run *r, node n) {
  struct jinja_macro *m = wn_jinja_memory(r, 1, sizeof *m);
  if (!m) return;
  *m = (struct jinja_macro){n, r->frame};
  const struct jinja_value v = {.kind = JINJA_MACRO, .as.macro = m};
  wn_jinja_set(r, r->frame, &n->value, &v);
}

static enum flow run_statement(struct jinja_run *r, node n) {
  struct jinja_value v;
  switch (n->kind) {
  case NODE_TEXT:
    wn_jinja_add_text(r->out, &n->value);
    break;
  case NODE_PRINT:
    v = wn_jinja_eval(r, n->a);
    wn_jinja_write(r->out, &v);
    break;
  case NODE_IF:
    for (; n && n->kind == NODE_IF; n = n->c) {
      v = wn_jinja_eval(r, n->a);
      if (wn_jinja_true(&v)) return run_exec(r, n->b);
    }
    return n && !r->failed ? run_exec(r, n->a) : FLOW_ON;
  case NODE_FOR:
    run_for(r, n);
    break;
  case NODE_SET:
    run_set(r, n);
    break;
  case NODE_MACRO:
    run_define(r, n);
    break;
  case NODE_BODY:
    return run_exec(r, n->a);
  case NODE_BREAK:
    return FLOW_BREAK;
  case NODE_CONTINUE:
    return FLOW_CONTINUE;
  default:
    break;
  }
  return FLOW_ON;
}

static enum flow run_exec(struct jinja_run *r, node list) {
  enum flow flow = FLOW_ON;
  for (node n = list; n && flow == FLOW_ON && !r->failed; n = n->next) {
    r->line = n->line;
    if (wn_jinja_enter(r)) flow = run_statement(r, n);
    wn_jinja_leave(r);
  }
  return flow;
}

/* --- the whole --- */

static void run_define_all(struct jinja_run *r, struct jinja_frame *f, const json_t *j, enum wn_origin origin) {
  const struct jinja_value all = wn_jinja_from_json(r, j, origin);
  for (size_t i = 0; all.kind == JINJA_DICT && i < all.count; i++)
    wn_jinja_set(r, f, &all.as.pairs[i].key, &all.as.pairs[i].value);
}

static size_t run_bytes(const json_t *j, int depth) {
  size_t bytes = 64, i; /* a value takes memory of its own */
  const char *key;
  json_t *one;
  if (depth > WN_TEMPLATE_DEPTH) return 0;
  if (json_is_string(j)) bytes += json_string_length(j);
  if (json_is_array(j)) json_array_foreach(j, i, one) bytes += run_bytes(one, depth + 1);
  if (json_is_object(j))
    json_object_foreach((json_t *)(uintptr_t)j, key, one) bytes += strlen(key) + run_bytes(one, depth + 1);
  return bytes;
}

static wn_status run_all(wn_context *ctx, const char *source, const struct wn_template_input *input,
                         struct wn_template_text *out) {
  struct jinja_run r = {.ctx = ctx, .input = input, .steps = WN_TEMPLATE_STEPS, .line = 1};
  struct jinja_frame globals = {0}, top = {.up = &globals};
  struct jinja_buffer text = {.run = &r};
  void *copy = NULL;
  r.left = WN_TEMPLATE_MEMORY + (input ? 32 * run_bytes(input->given, 0) : 0);
  node all = wn_jinja_parse(&r, source);
  if (input && !r.failed) {
    r.out = &text, r.frame = &top;
    run_define_all(&r, &globals, input->own, WN_ORIGIN_TEMPLATE);
    run_define_all(&r, &globals, input->given, WN_ORIGIN_GIVEN);
    run_exec(&r, all);
  }
  if (input && !r.failed) {
    r.status = wn_alloc(ctx, "a chat's text", 2 * text.count + 1, &copy);
    r.failed = r.status != WN_OK;
  }
  if (copy) {
    *out = (struct wn_template_text){.data = copy, .from = (unsigned char *)copy + text.count + 1, .bytes = text.count};
    if (text.count) memcpy(out->data, text.data, text.count), memcpy(out->from, text.from, text.count);
  }
  for (struct jinja_block *next; r.blocks; r.blocks = next) next = r.blocks->next, wn_free(r.blocks);
  return r.failed ? r.status : WN_OK;
}

wn_status wn_template_render(wn_context *ctx, const char *source, const struct wn_template_input *input,
                             struct wn_template_text *out) {
  *out = (struct wn_template_text){0};
  return run_all(ctx, source, input, out);
}

wn_status wn_template_check(wn_context *ctx, const char *source) {
  return run_all(ctx, source, NULL, NULL);
}

void wn_template_text_clear(struct wn_template_text *text) {
  wn_free(text->data);
  *text = (struct wn_template_text){0};
}
