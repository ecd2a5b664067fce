/* Filters and tests, by name. */
#include "text/template/jinja.h"

#include <math.h>
#include <stdlib.h>
#include "base/number.h"

typedef const struct jinja_call *call_args;
#define FILTER(name) static struct jinja_value filter_##name(struct jinja_run *r, call_args c)
#define TEST(name) static struct jinja_value test_##name(struct jinja_run *r, call_args c)

struct jinja_value wn_jinja_call(struct jinja_run *r, const struct jinja_spec *spec, const struct jinja_value *self,
                                 const struct jinja_args *args) {
  struct jinja_call c = {.all = args};
  if (!wn_jinja_step(r, 0)) return (struct jinja_value){0};
  const char *params = spec->params + (*spec->params == '$');
  if (self) c.self = params > spec->params ? wn_jinja_string(r, self) : *self;
  for (int i = 0; *params != '*' && i < args->count; i++) {
    const char *p = params, *space;
    int at = 0;
    const bool named = args->names[i].kind == JINJA_TEXT;
    for (; (space = strchr(p, ' ')); p = space + 1, at++)
      if (named ? args->names[i].count == (size_t)(space - p) && !memcmp(args->names[i].as.text, p, (size_t)(space - p))
                : at == i)
        break;
    if (!space && named)
      return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "%s: the argument \"%.*s\" is not known", spec->name,
                           (int)args->names[i].count, args->names[i].as.text);
    if (!space) return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "%s: argument %d is not known", spec->name, i + 1);
    c.at[at] = args->at[i];
    c.given[at] = true;
  }
  return spec->call(r, &c);
}

/* An integer argument. */
static int64_t filter_number(struct jinja_run *r, call_args c, int at, int64_t otherwise) {
  if (!c->given[at] || c->at[at].kind == JINJA_NONE) return otherwise;
  if (!jinja_whole(&c->at[at]))
    wn_jinja_fail(r, WN_ERR_FORMAT, "expected an integer, not %s", wn_jinja_kind(&c->at[at]));
  return jinja_whole(&c->at[at]) ? jinja_whole_of(&c->at[at]) : otherwise;
}
/* --- texts --- */

FILTER(indent) { /* width, first, blank */
  const struct jinja_value text = c->self, lines = wn_jinja_lines(r, &text);
  struct jinja_buffer margin = {.run = r}, b = {.run = r};
  if (c->at[0].kind == JINJA_TEXT) wn_jinja_add_text(&margin, &c->at[0]);
  const int64_t width = c->at[0].kind == JINJA_TEXT ? 0 : filter_number(r, c, 0, 4);
  for (int64_t i = 0; i < width && !r->failed; i++) wn_jinja_add(&margin, " ", 1, WN_ORIGIN_TEMPLATE);
  const struct jinja_value space = wn_jinja_done(&margin);
  for (size_t i = 0; i < lines.count && !r->failed; i++) {
    const struct jinja_value *line = &lines.as.items[i];
    if (i > 0) wn_jinja_add(&b, "\n", 1, WN_ORIGIN_TEMPLATE);
    if (i > 0 ? line->count || wn_jinja_true(&c->at[2]) : wn_jinja_true(&c->at[1])) wn_jinja_add_text(&b, &space);
    wn_jinja_add_text(&b, line);
  }
  const bool ends = text.count && (text.as.text[text.count - 1] == '\n' || text.as.text[text.count - 1] == '\r');
  if (ends) wn_jinja_add(&b, "\n", 1, WN_ORIGIN_TEMPLATE);
  if (ends && wn_jinja_true(&c->at[2])) wn_jinja_add_text(&b, &space);
  return wn_jinja_done(&b);
}

/* --- numbers --- */

/* The number that a text is, and whether it is whole; NAN: none. */
static double filter_read(struct jinja_run *r, const struct jinja_value *v, bool *whole) {
  const struct jinja_value text = wn_jinja_strip(r, v, NULL, 3);
  char digits[64], *end;
  *whole = jinja_whole(v);
  if (jinja_numeric(v)) return jinja_real_of(v);
  if (!text.count || text.count >= sizeof digits || memchr(text.as.text, 'x', text.count)) return NAN;
  memcpy(digits, text.as.text, text.count);
  digits[text.count] = 0;
  const double x = wn_number_read(digits, &end);
  return *end ? NAN : x;
}
FILTER(int) { /* default */
  bool whole;
  const double x = filter_read(r, &c->self, &whole);
  if (whole) return jinja_int(jinja_whole_of(&c->self));
  return fabs(x) < 9e15 ? jinja_int((int64_t)x) : c->given[0] ? c->at[0] : jinja_int(0);
}
FILTER(float) { /* default */
  bool whole;
  const double x = filter_read(r, &c->self, &whole);
  return !isnan(x) ? jinja_float(x) : c->given[0] ? c->at[0] : jinja_float(0);
}
FILTER(abs) {
  const struct jinja_value *v = &c->self;
  if (v->kind == JINJA_FLOAT) return jinja_float(fabs(v->as.real));
  if (jinja_whole(v) && jinja_whole_of(v) != INT64_MIN) return jinja_int(llabs(jinja_whole_of(v)));
  return wn_jinja_fail(r, WN_ERR_FORMAT, "abs of %s", wn_jinja_kind(v));
}
FILTER(round) { /* precision, method */
  const struct jinja_value common = jinja_text("common", 6), *how = c->given[1] ? &c->at[1] : &common;
  const int64_t places = filter_number(r, c, 0, 0);
  char digits[400];
  if (!jinja_numeric(&c->self) || places < 0 || places > 20 || how->kind != JINJA_TEXT)
    return wn_jinja_fail(r, WN_ERR_FORMAT, "round of %s", wn_jinja_kind(&c->self));
  const double x = jinja_real_of(&c->self), scale = pow(10, (double)places);
  if (jinja_is(how, "ceil") || jinja_is(how, "floor"))
    return jinja_float((jinja_is(how, "ceil") ? ceil(x * scale) : floor(x * scale)) / scale);
  if (jinja_whole(&c->self)) return c->self;
  wn_print(digits, sizeof digits, "%.*f", (int)places, x);
  return jinja_float(wn_number_read(digits, NULL));
}

/* --- lists --- */

static struct jinja_value filter_items_of(struct jinja_run *r, call_args c) {
  return wn_jinja_items(r, &c->self);
}
FILTER(list) {
  struct jinja_value out = filter_items_of(r, c);
  if (!r->failed) out.kind = JINJA_LIST;
  return out;
}
FILTER(length) {
  const struct jinja_value *v = &c->self;
  if (v->kind == JINJA_TEXT) return jinja_int((int64_t)wn_jinja_characters(r, v));
  if (v->kind == JINJA_DICT || jinja_listed(v)) return jinja_int((int64_t)v->count);
  if (v->kind == JINJA_UNDEFINED) return jinja_int(0);
  return wn_jinja_fail(r, WN_ERR_FORMAT, "object of type '%s' has no len()", wn_jinja_kind(v));
}
FILTER(first) {
  const struct jinja_value all = filter_items_of(r, c);
  return all.count ? all.as.items[0] : (struct jinja_value){0};
}
FILTER(last) {
  const struct jinja_value all = filter_items_of(r, c);
  return all.count ? all.as.items[all.count - 1] : (struct jinja_value){0};
}
FILTER(reverse) {
  const struct jinja_value all = filter_items_of(r, c);
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  struct jinja_buffer b = {.run = r};
  for (size_t i = 0; items && i < all.count; i++) items[i] = all.as.items[all.count - 1 - i];
  if (c->self.kind != JINJA_TEXT) return jinja_list(items, items ? all.count : 0);
  for (size_t i = 0; items && i < all.count; i++) wn_jinja_add_text(&b, &items[i]);
  return wn_jinja_done(&b);
}
FILTER(join) { /* d, attribute */
  const struct jinja_value all = filter_items_of(r, c), between = wn_jinja_string(r, &c->at[0]);
  struct jinja_buffer b = {.run = r};
  for (size_t i = 0; i < all.count && wn_jinja_step(r, 0); i++) {
    const struct jinja_value one = c->given[1] ? wn_jinja_path(r, &all.as.items[i], &c->at[1], NULL) : all.as.items[i];
    if (i > 0) wn_jinja_add_text(&b, &between);
    wn_jinja_write(&b, &one);
  }
  return wn_jinja_done(&b);
}
/* What an item is compared by: an attribute of it, and a text without case. */
static struct jinja_value filter_key(struct jinja_run *r, const struct jinja_value *item,
                                     const struct jinja_value *dots, bool exact) {
  const struct jinja_value key =
      dots->kind == JINJA_UNDEFINED || dots->kind == JINJA_NONE ? *item : wn_jinja_path(r, item, dots, NULL);
  return key.kind == JINJA_TEXT && !exact ? wn_jinja_case(r, &key, CASE_LOWER) : key;
}
static struct jinja_value filter_sorted(struct jinja_run *r, call_args c, const struct jinja_value *dots, bool exact,
                                        bool reverse) {
  const struct jinja_value all = filter_items_of(r, c);
  struct jinja_pair *pairs = wn_jinja_memory(r, all.count, sizeof *pairs);
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  for (size_t i = 0; pairs && i < all.count; i++)
    pairs[i] = (struct jinja_pair){filter_key(r, &all.as.items[i], dots, exact), all.as.items[i]};
  pairs = wn_jinja_sort(r, pairs, all.count, reverse);
  for (size_t i = 0; items && pairs && i < all.count; i++) items[i] = pairs[i].value;
  return jinja_list(items, items && pairs ? all.count : 0);
}
FILTER(sort) { /* reverse, case_sensitive, attribute */
  return filter_sorted(r, c, &c->at[2], wn_jinja_true(&c->at[1]), wn_jinja_true(&c->at[0]));
}
FILTER(min) { /* case_sensitive, attribute */
  const struct jinja_value all = filter_sorted(r, c, &c->at[1], wn_jinja_true(&c->at[0]), false);
  return all.count ? all.as.items[0] : (struct jinja_value){0};
}
FILTER(max) {
  const struct jinja_value all = filter_sorted(r, c, &c->at[1], wn_jinja_true(&c->at[0]), true);
  return all.count ? all.as.items[0] : (struct jinja_value){0};
}
FILTER(unique) { /* case_sensitive, attribute */
  const struct jinja_value all = filter_items_of(r, c);
  struct jinja_frame seen = {0};
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  size_t n = 0;
  for (size_t i = 0; items && i < all.count && wn_jinja_step(r, 0); i++) {
    const struct jinja_value key = filter_key(r, &all.as.items[i], &c->at[1], wn_jinja_true(&c->at[0]));
    if (wn_jinja_find(r, seen.pairs, seen.count, &key)) continue;
    wn_jinja_set(r, &seen, &key, &key);
    items[n++] = all.as.items[i];
  }
  return jinja_list(items, n);
}
FILTER(sum) { /* attribute, start */
  const struct jinja_value all = filter_items_of(r, c);
  double real = c->given[1] && jinja_numeric(&c->at[1]) ? jinja_real_of(&c->at[1]) : 0;
  int64_t whole = c->given[1] && jinja_whole(&c->at[1]) ? jinja_whole_of(&c->at[1]) : 0;
  bool exact = !c->given[1] || jinja_whole(&c->at[1]);
  for (size_t i = 0; i < all.count && wn_jinja_step(r, 0); i++) {
    const struct jinja_value one = c->given[0] ? wn_jinja_path(r, &all.as.items[i], &c->at[0], NULL) : all.as.items[i];
    if (!jinja_numeric(&one)) return wn_jinja_fail(r, WN_ERR_FORMAT, "sum of %s", wn_jinja_kind(&one));
    exact = exact && jinja_whole(&one) && !__builtin_add_overflow(whole, jinja_whole_of(&one), &whole);
    real += jinja_real_of(&one);
  }
  return exact ? jinja_int(whole) : jinja_float(real);
}
FILTER(items) {
  static const struct jinja_value name = {.kind = JINJA_TEXT, .as.text = "items", .count = 5};
  static const struct jinja_args none = {.count = 0};
  if (c->self.kind == JINJA_UNDEFINED) return jinja_list(NULL, 0);
  const struct jinja_spec *items = wn_jinja_method(&c->self, &name);
  return items ? wn_jinja_call(r, items, &c->self, &none)
               : wn_jinja_fail(r, WN_ERR_FORMAT, "items of a %s: expected a dict", wn_jinja_kind(&c->self));
}
FILTER(dictsort) { /* case_sensitive, by, reverse */
  const struct jinja_value all = filter_items(r, c);
  const bool by_value = c->given[1] && c->at[1].kind == JINJA_TEXT && jinja_is(&c->at[1], "value");
  const struct jinja_value at = jinja_int(by_value ? 1 : 0);
  struct jinja_call inner = {.self = all};
  return r->failed ? all : filter_sorted(r, &inner, &at, wn_jinja_true(&c->at[0]), wn_jinja_true(&c->at[2]));
}

/* --- choices among items --- */

/* The arguments from `from` on. */
static struct jinja_args filter_rest(const struct jinja_args *all, int from) {
  struct jinja_args rest = {.count = 0};
  for (int i = from; i < all->count; i++) {
    rest.at[rest.count] = all->at[i];
    rest.names[rest.count++] = all->names[i];
  }
  return rest;
}
/* Items that pass a test, or of which an attribute does. */
static struct jinja_value filter_chosen(struct jinja_run *r, call_args c, bool attribute, bool keep) {
  const struct jinja_value all = filter_items_of(r, c);
  const int first = attribute ? 1 : 0;
  const struct jinja_args rest = filter_rest(c->all, first + 1);
  const struct jinja_spec *test = NULL;
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  size_t n = 0;
  if (c->all->count < first) return wn_jinja_fail(r, WN_ERR_FORMAT, "expected the name of an attribute");
  if (c->all->count > first) {
    const struct jinja_value *name = &c->all->at[first];
    test = name->kind == JINJA_TEXT ? wn_jinja_test(name) : NULL;
    if (!test)
      return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "the test \"%.*s\" is not known",
                           name->kind == JINJA_TEXT ? (int)name->count : 0, name->as.text);
  }
  for (size_t i = 0; items && i < all.count && wn_jinja_step(r, 0); i++) {
    struct jinja_value v = all.as.items[i];
    if (attribute) v = wn_jinja_path(r, &v, &c->all->at[0], NULL);
    if (test) v = wn_jinja_call(r, test, &v, &rest);
    if (wn_jinja_true(&v) == keep) items[n++] = all.as.items[i];
  }
  return jinja_list(items, n);
}
#define CHOICES(X) X(select, false, true) X(reject, false, false) X(selectattr, true, true) X(rejectattr, true, false)
#define FILTER_CHOICE(name, attribute, keep)                                                                           \
  FILTER(name) {                                                                                                       \
    return filter_chosen(r, c, attribute, keep);                                                                       \
  }
CHOICES(FILTER_CHOICE)
FILTER(map) { /* attribute=, default=; or a filter and its arguments */
  const struct jinja_value all = filter_items_of(r, c);
  const struct jinja_value *path = NULL, *otherwise = NULL;
  struct jinja_value *items = wn_jinja_memory(r, all.count, sizeof *items);
  for (int i = 0; i < c->all->count; i++) {
    if (c->all->names[i].kind == JINJA_TEXT && jinja_is(&c->all->names[i], "attribute")) path = &c->all->at[i];
    if (c->all->names[i].kind == JINJA_TEXT && jinja_is(&c->all->names[i], "default")) otherwise = &c->all->at[i];
  }
  const struct jinja_value *name = path || c->all->count == 0 ? NULL : &c->all->at[0];
  const struct jinja_spec *filter = name && name->kind == JINJA_TEXT ? wn_jinja_filter(name) : NULL;
  const struct jinja_args rest = filter_rest(c->all, 1);
  if (!path && !filter)
    return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "map: expected attribute= or a filter that is known");
  for (size_t i = 0; items && i < all.count && wn_jinja_step(r, 0); i++) {
    const struct jinja_value *v = &all.as.items[i];
    items[i] = path ? wn_jinja_path(r, v, path, otherwise) : wn_jinja_call(r, filter, v, &rest);
  }
  return jinja_list(items, items ? all.count : 0);
}

/* --- the rest --- */

FILTER(default) { /* default_value, boolean */
  const bool boolean = wn_jinja_true(&c->at[1]);
  if (r->failed || (boolean ? wn_jinja_true(&c->self) : c->self.kind != JINJA_UNDEFINED)) return c->self;
  return c->given[0] ? c->at[0] : jinja_text("", 0);
}
FILTER(safe) {
  return r->failed ? (struct jinja_value){0} : c->self;
}
FILTER(attr) { /* name */
  return wn_jinja_path(r, &c->self, &c->at[0], NULL);
}

static const struct jinja_spec filters[] = {
    {"indent", "$width first blank ", filter_indent},
    {"int", "default ", filter_int},
    {"float", "default ", filter_float},
    {"abs", "", filter_abs},
    {"round", "precision method ", filter_round},
    {"list", "", filter_list},
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"reverse", "", filter_reverse},
    {"join", "d attribute ", filter_join},
    {"sort", "reverse case_sensitive attribute ", filter_sort},
    {"min", "case_sensitive attribute ", filter_min},
    {"max", "case_sensitive attribute ", filter_max},
    {"unique", "case_sensitive attribute ", filter_unique},
    {"sum", "attribute start ", filter_sum},
    {"items", "", filter_items},
    {"dictsort", "case_sensitive by reverse ", filter_dictsort},
    {"default", "default_value boolean ", filter_default},
    {"d", "default_value boolean ", filter_default},
    {"safe", "", filter_safe},
    {"string", "$", filter_safe},
    {"attr", "name ", filter_attr},
    {"tojson", "indent ensure_ascii separators sort_keys ", wn_jinja_json},
    {"select", "*", filter_select},
    {"reject", "*", filter_reject},
    {"selectattr", "*", filter_selectattr},
    {"rejectattr", "*", filter_rejectattr},
    {"map", "*", filter_map},
};

/* --- tests --- */

#define KINDS(X)                                                                                                       \
  X(defined, v->kind != JINJA_UNDEFINED)                                                                               \
  X(undefined, v->kind == JINJA_UNDEFINED)                                                                             \
  X(none, v->kind == JINJA_NONE)                                                                                       \
  X(string, v->kind == JINJA_TEXT)                                                                                     \
  X(mapping, v->kind == JINJA_DICT)                                                                                    \
  X(iterable, v->kind == JINJA_UNDEFINED || v->kind == JINJA_TEXT || v->kind == JINJA_DICT || jinja_listed(v))         \
  X(number, jinja_numeric(v))                                                                                          \
  X(integer, v->kind == JINJA_INT)                                                                                     \
  X(float, v->kind == JINJA_FLOAT)                                                                                     \
  X(boolean, v->kind == JINJA_BOOL)                                                                                    \
  X(yes, v->kind == JINJA_BOOL && v->as.yes)                                                                           \
  X(no, v->kind == JINJA_BOOL && !v->as.yes)                                                                           \
  X(callable, v->kind == JINJA_MACRO || v->kind == JINJA_METHOD)
#define TEST_KIND(name, condition)                                                                                     \
  TEST(name) {                                                                                                         \
    const struct jinja_value *v = &c->self;                                                                            \
    return jinja_bool(!r->failed && (condition));                                                                      \
  }
KINDS(TEST_KIND)
#define COMPARISONS(X)                                                                                                 \
  X(eq, wn_jinja_equal(r, v, w))                                                                                       \
  X(ne, !wn_jinja_equal(r, v, w))                                                                                      \
  X(lt, wn_jinja_order(r, v, w) < 0)                                                                                   \
  X(le, wn_jinja_order(r, v, w) <= 0)                                                                                  \
  X(gt, wn_jinja_order(r, v, w) > 0)                                                                                   \
  X(ge, wn_jinja_order(r, v, w) >= 0)                                                                                  \
  X(in, wn_jinja_contains(r, w, v))                                                                                    \
  X(sameas, v->kind == w->kind && wn_jinja_equal(r, v, w))
#define TEST_COMPARISON(name, condition)                                                                               \
  TEST(name) {                                                                                                         \
    const struct jinja_value *v = &c->self, *w = &c->at[0];                                                            \
    return jinja_bool(condition);                                                                                      \
  }
COMPARISONS(TEST_COMPARISON)
static struct jinja_value test_divides(struct jinja_run *r, const struct jinja_value *v, int64_t by, int64_t rest) {
  if (!jinja_whole(v) || by == 0 || by == -1) return wn_jinja_fail(r, WN_ERR_FORMAT, "expected integers");
  return jinja_bool((jinja_whole_of(v) % by != 0) == (rest != 0));
}
TEST(odd) {
  return test_divides(r, &c->self, 2, 1);
}
TEST(even) {
  return test_divides(r, &c->self, 2, 0);
}
TEST(divisibleby) {
  return test_divides(r, &c->self, filter_number(r, c, 0, 0), 0);
}
static struct jinja_value test_case(struct jinja_run *r, call_args c, enum jinja_case is, enum jinja_case not ) {
  const struct jinja_value same = wn_jinja_case(r, &c->self, is), other = wn_jinja_case(r, &c->self, not );
  return jinja_bool(jinja_same(&c->self, &same) && !jinja_same(&c->self, &other));
}
TEST(upper) {
  return test_case(r, c, CASE_UPPER, CASE_LOWER);
}
TEST(lower) {
  return test_case(r, c, CASE_LOWER, CASE_UPPER);
}

#define TEST_ROW(name, condition) {#name, "", test_##name},
#define TEST_ROW_OF(name, condition) {#name, "other ", test_##name},
static const struct jinja_spec tests[] = {
    KINDS(TEST_ROW) COMPARISONS(TEST_ROW_OF) /* and their other names */
    {"true", "", test_yes},
    {"false", "", test_no},
    {"sequence", "", test_iterable},
    {"equalto", "other ", test_eq},
    {"==", "other ", test_eq},
    {"!=", "other ", test_ne},
    {"<", "other ", test_lt},
    {"lessthan", "other ", test_lt},
    {"<=", "other ", test_le},
    {">", "other ", test_gt},
    {"greaterthan", "other ", test_gt},
    {">=", "other ", test_ge},
    {"odd", "", test_odd},
    {"even", "", test_even},
    {"divisibleby", "num ", test_divisibleby},
    {"upper", "$", test_upper},
    {"lower", "$", test_lower},
};

const struct jinja_spec *wn_jinja_filter(const struct jinja_value *name) {
  const struct jinja_spec *own = JINJA_FIND(filters, name);
  return own ? own : wn_jinja_text_filter(name);
}
const struct jinja_spec *wn_jinja_test(const struct jinja_value *name) {
  return JINJA_FIND(tests, name);
}
