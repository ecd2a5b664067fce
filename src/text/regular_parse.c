/* Reads regular expressions. A counted atom is read as often as it occurs, so that each time has nodes of its own. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/error.h"
#include "base/number.h"
#include "text/regular_nodes.h"

enum { NESTING = 32, CLASS_RANGES = 128, READ = 1 << 18, FOREVER = -1 };

struct parser {
  wn_context *ctx;
  struct wn_nodes *n;
  const char *text, *at;
  int depth, read; /* read: nodes, also those that were given up */
};

struct piece { /* nodes: from `first` to `last`, which is empty and goes nowhere yet */
  uint16_t first, last;
};

static wn_status parse_alternatives(struct parser *p, struct piece *out);

__attribute__((format(printf, 3, 4))) static wn_status parse_refuse(const struct parser *p, wn_status status,
                                                                    const char *format, ...) {
  char line[120], shown[120];
  va_list args;
  va_start(args, format);
  wn_print_list(line, sizeof line, format, args);
  va_end(args);
  wn_line_escape(p->text, shown, sizeof shown);
  return wn_fail(p->ctx, status, "the regular expression \"%s\" has %s", shown, line);
}

static wn_status parse_add(struct parser *p, enum wn_node_kind kind, uint16_t *out) {
  if (p->n->node_count == WN_REGULAR_NODES || ++p->read > READ)
    return parse_refuse(p, WN_ERR_UNSUPPORTED, "more than %d parts, counted as often as they may occur",
                        WN_REGULAR_NODES);
  *out = (uint16_t)p->n->node_count++;
  p->n->node[*out] = (struct wn_node){.kind = (uint8_t)kind};
  return WN_OK;
}

/* A node of this kind and the empty one after it. */
static wn_status parse_leaf(struct parser *p, enum wn_node_kind kind, uint32_t set, struct piece *out) {
  WN_TRY(parse_add(p, kind, &out->first));
  WN_TRY(parse_add(p, WN_NODE_EMPTY, &out->last));
  p->n->node[out->first].set = (uint16_t)set;
  p->n->node[out->first].to[0] = out->last;
  return WN_OK;
}

static void parse_join(struct parser *p, uint16_t from, uint16_t to) {
  uint16_t *way = p->n->node[from].to;
  way[way[0] != 0] = to;
}

/* --- sets of characters --- */

struct class {
  struct wn_range range[CLASS_RANGES];
  uint32_t count;
};

static wn_status class_add(struct parser *p, struct class *c, uint32_t low, uint32_t high) {
  if (c->count == CLASS_RANGES)
    return parse_refuse(p, WN_ERR_UNSUPPORTED, "a class of more than %d parts", CLASS_RANGES);
  c->range[c->count++] = (struct wn_range){low, high};
  return WN_OK;
}

static int class_compare(const void *x, const void *y) {
  const struct wn_range *a = x, *b = y;
  return (a->low > b->low) - (a->low < b->low);
}

static wn_status class_finish(struct parser *p, struct class *c, bool negated) {
  uint32_t kept = 0;
  qsort(c->range, c->count, sizeof *c->range, class_compare);
  for (uint32_t i = 0; i < c->count; i++) {
    if (kept == 0 || c->range[i].low > c->range[kept - 1].high + 1)
      c->range[kept++] = c->range[i];
    else if (c->range[i].high > c->range[kept - 1].high)
      c->range[kept - 1].high = c->range[i].high;
  }
  c->count = kept;
  if (!negated) return WN_OK;
  struct class all = {.count = 0};
  uint32_t low = 0;
  for (uint32_t i = 0; i < kept; i++) {
    if (c->range[i].low > low) WN_TRY(class_add(p, &all, low, c->range[i].low - 1));
    low = c->range[i].high + 1;
  }
  if (low <= WN_REGULAR_LAST) WN_TRY(class_add(p, &all, low, WN_REGULAR_LAST));
  *c = all;
  return WN_OK;
}

/* A set, which may be there already. */
static wn_status class_set(struct parser *p, const struct class *c, uint32_t *set) {
  struct wn_nodes *n = p->n;
  for (*set = 0; *set < n->set_count; ++*set)
    if (n->set[*set].count == c->count && !memcmp(n->range + n->set[*set].first, c->range, c->count * sizeof *c->range))
      return WN_OK;
  if (n->set_count == WN_REGULAR_SETS || c->count > WN_REGULAR_RANGES - n->range_count)
    return parse_refuse(p, WN_ERR_UNSUPPORTED, "more than %d sets of characters", WN_REGULAR_SETS);
  n->set[n->set_count++] = (struct wn_set){n->range_count, c->count};
  memcpy(n->range + n->range_count, c->range, c->count * sizeof *c->range);
  n->range_count += c->count;
  return WN_OK;
}

static const struct wn_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                             spaces[] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}},
                             line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
static const struct named {
  char name;
  const struct wn_range *range;
  uint32_t count;
} named[] = {{'d', digits, 1}, {'w', words, 4}, {'s', spaces, 10}, {'.', line_ends, 3}};

/* \d, \w, \s, and with a capital letter all others; ".": no end of a line. *is false: none of these. */
static wn_status class_named(struct parser *p, const char *at, struct class *c, bool *is) {
  const char name = *at == '\\' && at[1] != '.' ? at[1] : *at,
             lower = name >= 'A' && name <= 'Z' ? (char)(name + 32) : name;
  *is = true;
  for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
    if (named[i].name != lower) continue;
    struct class one = {.count = named[i].count};
    memcpy(one.range, named[i].range, one.count * sizeof *one.range);
    WN_TRY(class_finish(p, &one, lower != name || name == '.'));
    for (uint32_t k = 0; k < one.count; k++) WN_TRY(class_add(p, c, one.range[k].low, one.range[k].high));
    return WN_OK;
  }
  *is = false;
  return WN_OK;
}

static wn_status parse_hex(struct parser *p, int digits_wanted, uint32_t *out) {
  char *end;
  char copy[9] = "";
  const bool braces = *p->at == '{' && digits_wanted == 4;
  if (braces) p->at++, digits_wanted = 6;
  strncpy(copy, p->at, (size_t)digits_wanted);
  *out = (uint32_t)strtoul(copy, &end, 16);
  const bool hex = (copy[0] >= '0' && copy[0] <= '9') || ((copy[0] | 32) >= 'a' && (copy[0] | 32) <= 'f');
  p->at += end - copy;
  const bool whole = braces ? *p->at++ == '}' : end - copy == digits_wanted;
  if (hex && whole && copy[1] != 'x' && copy[1] != 'X' && *out <= WN_REGULAR_LAST) return WN_OK;
  return parse_refuse(p, WN_ERR_FORMAT, "an escape that is no character");
}

/* One character, which may be escaped, after its backslash has been seen to begin no set. */
static wn_status parse_character(struct parser *p, bool in_class, uint32_t *out) {
  static const char names[] = "tnvfr0", means[] = "\t\n\v\f\r";
  if (*p->at != '\\') {
    int32_t c;
    const utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)p->at, (utf8proc_ssize_t)strnlen(p->at, 4), &c);
    if (n <= 0) return parse_refuse(p, WN_ERR_FORMAT, "no UTF-8");
    p->at += n;
    *out = (uint32_t)c;
    return WN_OK;
  }
  const char c = *++p->at;
  if (!c) return parse_refuse(p, WN_ERR_FORMAT, "a backslash at its end");
  p->at++;
  const char *name = strchr(names, c);
  if (name) {
    *out = (unsigned char)means[name - names];
    return WN_OK;
  }
  if (c == 'x' || c == 'u') return parse_hex(p, c == 'x' ? 2 : 4, out);
  if (c == 'b' && in_class) {
    *out = '\b';
    return WN_OK;
  }
  const char *what = c == 'b' || c == 'B'                 ? "the edge of a word"
                     : c == 'k' || (c >= '1' && c <= '9') ? "a reference to a group"
                     : c == 'p' || c == 'P'               ? "a property of characters"
                     : c == 'c' || (c & 0x80) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'
                         ? "an escape"
                         : NULL;
  if (what) return parse_refuse(p, WN_ERR_UNSUPPORTED, "%s (\\%c), which is not served", what, c & 0x80 ? '?' : c);
  *out = (unsigned char)c;
  return WN_OK;
}

/* [...], after its bracket. */
static wn_status parse_class(struct parser *p, struct class *c) {
  const bool negated = *p->at == '^';
  c->count = 0;
  p->at += negated;
  while (*p->at && *p->at != ']') {
    uint32_t low, high;
    bool is = false;
    if (*p->at == '\\') WN_TRY(class_named(p, p->at, c, &is));
    if (is) {
      p->at += 2;
      continue;
    }
    WN_TRY(parse_character(p, true, &low));
    high = low;
    if (*p->at == '-' && p->at[1] && p->at[1] != ']') {
      p->at++;
      if (*p->at == '\\' && p->at[1] && strchr("dDwWsS", p->at[1]))
        return parse_refuse(p, WN_ERR_FORMAT, "a range that ends with a set");
      WN_TRY(parse_character(p, true, &high));
    }
    if (high < low) return parse_refuse(p, WN_ERR_FORMAT, "a range whose end comes before its beginning");
    WN_TRY(class_add(p, c, low, high));
  }
  if (!*p->at) return parse_refuse(p, WN_ERR_FORMAT, "a class without an end");
  p->at++;
  return class_finish(p, c, negated);
}

/* --- atoms --- */

static wn_status parse_group(struct parser *p, struct piece *out) {
  if (*p->at == '?') {
    const char kind = p->at[1], name = p->at[2];
    if (kind == ':') {
      p->at += 2;
    } else if (kind == '<' && name != '=' && name != '!' && strchr(p->at, '>')) {
      p->at = strchr(p->at, '>') + 1;
    } else {
      return parse_refuse(p, WN_ERR_UNSUPPORTED, "a group (?%c, which is not served",
                          kind > ' ' && kind < 0x7F ? kind : '.');
    }
  }
  WN_TRY(parse_alternatives(p, out));
  if (*p->at != ')') return parse_refuse(p, WN_ERR_FORMAT, "a group without an end");
  p->at++;
  return WN_OK;
}

static wn_status parse_atom(struct parser *p, struct piece *out) {
  struct class c = {.count = 0};
  uint32_t set, one;
  bool is = false;
  const char first = *p->at;
  if (first == '(' || first == '^' || first == '$') {
    p->at++;
    return first == '(' ? parse_group(p, out) : parse_leaf(p, first == '^' ? WN_NODE_BEGIN : WN_NODE_END, 0, out);
  }
  if (strchr("*+?", first)) return parse_refuse(p, WN_ERR_FORMAT, "'%c' after nothing that it could repeat", first);
  if (first == '[') {
    p->at++;
    WN_TRY(parse_class(p, &c));
  } else {
    if (first == '.' || first == '\\') WN_TRY(class_named(p, p->at, &c, &is));
    if (is)
      p->at += first == '.' ? 1 : 2;
    else {
      WN_TRY(parse_character(p, false, &one));
      WN_TRY(class_add(p, &c, one, one));
    }
  }
  WN_TRY(class_set(p, &c, &set));
  return parse_leaf(p, WN_NODE_SET, set, out);
}

/* {n}, {n,} or {n,m}; false: a brace that is only that. */
static bool parse_count(const char **at, int *min, int *max) {
  const char *c = *at + 1;
  char *end;
  if (*c < '0' || *c > '9') return false;
  const unsigned long low = strtoul(c, &end, 10);
  unsigned long high = low;
  bool open = false;
  if (*end == ',') {
    c = end + 1;
    open = *c == '}';
    if (!open && (*c < '0' || *c > '9')) return false;
    high = strtoul(c, &end, 10);
  }
  if (*end != '}') return false;
  *at = end + 1;
  *min = low < WN_REGULAR_NODES ? (int)low : WN_REGULAR_NODES; /* more have no room anyway */
  *max = open ? FOREVER : high < WN_REGULAR_NODES ? (int)high : WN_REGULAR_NODES;
  return true;
}

static bool parse_quantifier(struct parser *p, int *min, int *max) {
  const char c = *p->at;
  *min = c == '+', *max = c == '?' ? 1 : FOREVER;
  if (c && strchr("*+?", c))
    p->at++;
  else if (c != '{' || !parse_count(&p->at, min, max))
    return false;
  if (*p->at == '?') p->at++;
  return true;
}

/* An atom min to max times, from `from` on. */
static wn_status parse_repeated(struct parser *p, const char *from, int min, int max, struct piece *out) {
  const char *after = p->at;
  struct piece one;
  WN_TRY(parse_leaf(p, WN_NODE_EMPTY, 0, out));
  uint16_t last = out->last, end = 0;
  WN_TRY(parse_add(p, WN_NODE_EMPTY, &end));
  for (int i = 0; i < (max == FOREVER ? min + 1 : max); i++) {
    uint16_t here = last;
    p->at = from;
    WN_TRY(parse_atom(p, &one));
    parse_join(p, here, one.first);
    if (i >= min) parse_join(p, here, end);
    if (max == FOREVER && i == min) parse_join(p, one.last, here);
    last = one.last;
  }
  if (max != FOREVER) parse_join(p, last, end);
  out->last = end;
  p->at = after;
  return WN_OK;
}

static wn_status parse_sequence(struct parser *p, struct piece *out) {
  WN_TRY(parse_leaf(p, WN_NODE_EMPTY, 0, out));
  while (*p->at && *p->at != '|' && *p->at != ')') {
    const char *from = p->at;
    const uint32_t nodes = p->n->node_count;
    struct piece one;
    int min, max;
    WN_TRY(parse_atom(p, &one));
    if (parse_quantifier(p, &min, &max)) {
      if (max != FOREVER && max < min) return parse_refuse(p, WN_ERR_FORMAT, "a count whose most is below its least");
      p->n->node_count = nodes; /* read again, as often as it occurs */
      WN_TRY(parse_repeated(p, from, min, max, &one));
    }
    parse_join(p, out->last, one.first);
    out->last = one.last;
  }
  return WN_OK;
}

static wn_status parse_alternatives(struct parser *p, struct piece *out) {
  struct piece one;
  if (++p->depth > NESTING) return parse_refuse(p, WN_ERR_UNSUPPORTED, "groups deeper than %d", NESTING);
  WN_TRY(parse_sequence(p, out));
  while (*p->at == '|') {
    struct piece both;
    p->at++;
    WN_TRY(parse_sequence(p, &one));
    WN_TRY(parse_add(p, WN_NODE_EMPTY, &both.first));
    WN_TRY(parse_add(p, WN_NODE_EMPTY, &both.last));
    parse_join(p, both.first, out->first);
    parse_join(p, both.first, one.first);
    parse_join(p, out->last, both.last);
    parse_join(p, one.last, both.last);
    *out = both;
  }
  p->depth--;
  return WN_OK;
}

/* Any characters, any number of them, then `to`. */
static wn_status parse_around(struct parser *p, uint16_t node, uint16_t to) {
  const struct class all = {.range = {{0, WN_REGULAR_LAST}}, .count = 1};
  uint32_t set;
  uint16_t any = 0;
  WN_TRY(class_set(p, &all, &set));
  WN_TRY(parse_add(p, WN_NODE_SET, &any));
  p->n->node[any].set = (uint16_t)set;
  parse_join(p, any, node);
  parse_join(p, node, to);
  parse_join(p, node, any);
  return WN_OK;
}

wn_status wn_nodes_add(wn_context *ctx, struct wn_nodes *n, const char *pattern) {
  struct parser p = {.ctx = ctx, .n = n, .text = pattern, .at = pattern};
  struct piece all;
  uint16_t start = 0, end = 0, match = 0;
  if (n->node_count == 0) n->node_count = 1;
  WN_TRY(parse_add(&p, WN_NODE_EMPTY, &start));
  WN_TRY(parse_alternatives(&p, &all));
  if (*p.at) return parse_refuse(&p, WN_ERR_FORMAT, "a ')' that ends no group");
  WN_TRY(parse_add(&p, WN_NODE_EMPTY, &end));
  WN_TRY(parse_add(&p, WN_NODE_MATCH, &match));
  parse_join(&p, all.last, end);
  WN_TRY(parse_around(&p, start, all.first));
  WN_TRY(parse_around(&p, end, match));
  n->start[n->patterns] = start;
  n->match[n->patterns++] = match;
  return WN_OK;
}
