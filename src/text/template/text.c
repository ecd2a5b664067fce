/* Texts: building them, and values as {{ }} and tojson write them. */
#include "text/template/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/number.h"

/* Room for more bytes; false after a failure. */
static bool text_room(struct jinja_buffer *b, size_t more) {
  struct jinja_run *r = b->run;
  if (!wn_jinja_step(r, more)) return false;
  if (more <= b->room - b->count) return true;
  const size_t room = 2 * (b->count + more) + 64;
  char *data = wn_jinja_memory(r, room, 1);
  unsigned char *from = wn_jinja_memory(r, room, 1);
  if (!data || !from) return false;
  if (b->count) memcpy(data, b->data, b->count), memcpy(from, b->from, b->count);
  b->data = data, b->from = from, b->room = room;
  return true;
}

void wn_jinja_add(struct jinja_buffer *b, const char *text, size_t bytes, enum wn_origin origin) {
  if (bytes == 0 || !text_room(b, bytes)) return;
  memcpy(b->data + b->count, text, bytes);
  memset(b->from + b->count, (int)origin, bytes);
  b->count += bytes;
}
static void text_put(struct jinja_buffer *b, const char *text) {
  wn_jinja_add(b, text, strlen(text), WN_ORIGIN_TEMPLATE);
}

void wn_jinja_add_text(struct jinja_buffer *b, const struct jinja_value *text) {
  if (text->kind != JINJA_TEXT || text->count == 0 || !text_room(b, text->count)) return;
  memcpy(b->data + b->count, text->as.text, text->count);
  if (text->from)
    memcpy(b->from + b->count, text->from, text->count);
  else
    memset(b->from + b->count, text->origin, text->count);
  b->count += text->count;
}

struct jinja_value wn_jinja_done(const struct jinja_buffer *b) {
  struct jinja_value out = jinja_text(b->count ? b->data : "", b->count);
  out.from = b->from;
  if (b->count == 0) out.from = NULL;
  return out;
}

/* As Python's repr: the shortest number that reads back equal. */
static void text_float(struct jinja_buffer *b, double x) {
  char digits[40], out[64];
  int precision = 0;
  do wn_print(digits, sizeof digits, "%.*e", precision, x);
  while (wn_number_read(digits, NULL) != x && precision++ < 17);
  const char *e = strchr(digits, 'e');
  const int exponent = e ? (int)strtol(e + 1, NULL, 10) : 0;
  if (exponent >= -4 && exponent < 16)
    wn_print(out, sizeof out, "%.*f", precision > exponent ? precision - exponent : 1, x);
  else
    snprintf(out, sizeof out, "%s", digits);
  text_put(b, out);
}

static void text_int(struct jinja_buffer *b, int64_t n) {
  char digits[32];
  snprintf(digits, sizeof digits, "%lld", (long long)n);
  text_put(b, digits);
}

/* A text between quotes, with escapes; each byte keeps its origin. json: JSON's, else Python's. */
static void text_quoted(struct jinja_buffer *b, const struct jinja_value *v, bool json) {
  static const char named[] = "\b\f\n\r\t\\", letters[] = "bfnrt\\";
  const bool single = v->count && memchr(v->as.text, '\'', v->count),
             both = v->count && memchr(v->as.text, '"', v->count);
  const char quote[2] = {json || (single && !both) ? '"' : '\'', 0};
  char escape[8];
  text_put(b, quote);
  for (size_t i = 0, more; i < v->count && !b->run->failed; i += more) {
    size_t plain = 0;
    while (i + plain < v->count) {
      const unsigned char c = (unsigned char)v->as.text[i + plain];
      if (c < 32 || c == '\\' || c == (unsigned char)*quote || (!json && c == 127)) break;
      plain++;
    }
    const struct jinja_value part = wn_jinja_part(v, i, i + plain);
    wn_jinja_add_text(b, &part);
    more = plain;
    if (i + plain == v->count) break;
    const char c = v->as.text[i + plain], *at = c ? strchr(named, c) : NULL;
    if (c == *quote)
      snprintf(escape, sizeof escape, "\\%c", c);
    else if (at && (json || (c != '\b' && c != '\f')))
      snprintf(escape, sizeof escape, "\\%c", letters[at - named]);
    else
      snprintf(escape, sizeof escape, json ? "\\u%04x" : "\\x%02x", (unsigned)(unsigned char)c);
    const enum wn_origin origin = v->from ? v->from[i + plain] : v->origin;
    wn_jinja_add(b, escape, strlen(escape), origin);
    more++;
  }
  text_put(b, quote);
}

/* How lists and dicts are written. */
struct text_style {
  bool json, sorted;
  struct jinja_value item, key, indent; /* separators; indent: JINJA_TEXT, or all on one line */
};

static void text_line(struct jinja_buffer *b, const struct text_style *s, int level) {
  if (s->indent.kind != JINJA_TEXT) return;
  text_put(b, "\n");
  for (int i = 0; i < level; i++) wn_jinja_add_text(b, &s->indent);
}

/* The value in one word; NULL: it has none. */
static const char *text_word(const struct jinja_value *v, bool json) {
  const double x = v->kind == JINJA_FLOAT ? v->as.real : 0;
  if (v->kind == JINJA_NONE) return json ? "null" : "None";
  if (v->kind == JINJA_BOOL) return v->as.yes ? (json ? "true" : "True") : json ? "false" : "False";
  if (isnan(x)) return json ? "NaN" : "nan";
  if (isinf(x)) return x < 0 ? (json ? "-Infinity" : "-inf") : json ? "Infinity" : "inf";
  return NULL;
}

static void text_value(struct jinja_buffer *b, const struct jinja_value *v, const struct text_style *s, int level);

static void text_list(struct jinja_buffer *b, const struct jinja_value *v, const struct text_style *s, int level) {
  const bool round = v->kind == JINJA_TUPLE && !s->json;
  text_put(b, round ? "(" : "[");
  for (size_t i = 0; i < v->count && !b->run->failed; i++) {
    if (i > 0) wn_jinja_add_text(b, &s->item);
    text_line(b, s, level + 1);
    text_value(b, &v->as.items[i], s, level + 1);
  }
  if (v->count) text_line(b, s, level);
  text_put(b, !round ? "]" : v->count == 1 ? ",)" : ")");
}

/* JSON has texts for keys alone. */
static void text_key(struct jinja_buffer *b, const struct jinja_value *key, const struct text_style *s) {
  struct jinja_buffer inner = {.run = b->run};
  const bool made = s->json && key->kind != JINJA_TEXT;
  text_value(made ? &inner : b, key, s, made ? 0 : 1);
  const struct jinja_value text = wn_jinja_done(&inner);
  if (made) text_quoted(b, &text, true);
}

static void text_dict(struct jinja_buffer *b, const struct jinja_pair *pairs, size_t count, const struct text_style *s,
                      int level) {
  if (s->sorted) pairs = wn_jinja_sort(b->run, pairs, count, false);
  text_put(b, "{");
  for (size_t i = 0; pairs && i < count && !b->run->failed; i++) {
    if (i > 0) wn_jinja_add_text(b, &s->item);
    text_line(b, s, level + 1);
    text_key(b, &pairs[i].key, s);
    wn_jinja_add_text(b, &s->key);
    text_value(b, &pairs[i].value, s, level + 1);
  }
  if (count) text_line(b, s, level);
  text_put(b, "}");
}

static void text_space(struct jinja_buffer *b, const struct jinja_frame *space, const struct text_style *s, int level) {
  text_put(b, "<Namespace ");
  text_dict(b, space->pairs, space->count, s, level);
  text_put(b, ">");
}

/* level: how many lists and dicts it is in; Python writes a text between quotes in these alone. */
static void text_value(struct jinja_buffer *b, const struct jinja_value *v, const struct text_style *s, int level) {
  struct jinja_run *r = b->run;
  const char *word = text_word(v, s->json);
  if (v->kind == JINJA_TEXT && (s->json || level > 0)) {
    text_quoted(b, v, s->json);
    return;
  }
  if (wn_jinja_enter(r)) {
    if (word)
      text_put(b, word);
    else if (v->kind == JINJA_TEXT)
      wn_jinja_add_text(b, v);
    else if (v->kind == JINJA_INT)
      text_int(b, v->as.number);
    else if (v->kind == JINJA_FLOAT)
      text_float(b, v->as.real);
    else if (jinja_listed(v))
      text_list(b, v, s, level);
    else if (v->kind == JINJA_DICT)
      text_dict(b, v->as.pairs, v->count, s, level);
    else if (s->json)
      wn_jinja_fail(r, WN_ERR_FORMAT, "tojson: a %s is no JSON", wn_jinja_kind(v));
    else if (v->kind == JINJA_UNDEFINED)
      text_put(b, level > 0 ? "Undefined" : "");
    else if (v->kind == JINJA_SPACE)
      text_space(b, v->as.space, s, level);
    else
      wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "a %s has no text", wn_jinja_kind(v));
  }
  wn_jinja_leave(r);
}

void wn_jinja_write(struct jinja_buffer *b, const struct jinja_value *v) {
  text_value(b, v, &(struct text_style){.item = jinja_text(", ", 2), .key = jinja_text(": ", 2)}, 0);
}

struct jinja_value wn_jinja_string(struct jinja_run *r, const struct jinja_value *v) {
  struct jinja_buffer b = {.run = r};
  if (v->kind == JINJA_TEXT) return *v;
  wn_jinja_write(&b, v);
  return wn_jinja_done(&b);
}

struct jinja_value wn_jinja_json(struct jinja_run *r, const struct jinja_call *c) {
  /* indent, ensure_ascii, separators, sort_keys */
  struct jinja_buffer b = {.run = r};
  const struct jinja_value *indent = &c->at[0], *marks = &c->at[2];
  struct text_style s = {
      .json = true, .sorted = wn_jinja_true(&c->at[3]), .item = jinja_text(", ", 2), .key = jinja_text(": ", 2)};
  if (c->given[1] && wn_jinja_true(&c->at[1]))
    return wn_jinja_fail(r, WN_ERR_UNSUPPORTED, "tojson with ensure_ascii is not known");
  if (indent->kind == JINJA_TEXT) {
    s.indent = *indent;
  } else if (jinja_whole(indent)) {
    const int64_t n = jinja_whole_of(indent);
    const size_t width = n < 0 ? 0 : n > 64 ? 64 : (size_t)n;
    char *spaces = wn_jinja_memory(r, 64, 1);
    if (spaces) memset(spaces, ' ', 64), s.indent = jinja_text(spaces, width);
  }
  if (s.indent.kind == JINJA_TEXT) s.item = jinja_text(",", 1);
  if (jinja_listed(marks) && marks->count == 2) s.item = marks->as.items[0], s.key = marks->as.items[1];
  text_value(&b, &c->self, &s, 0);
  return wn_jinja_done(&b);
}
