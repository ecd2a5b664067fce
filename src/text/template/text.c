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
  if (isnan(x) || isinf(x)) {
    text_put(b, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    return;
  }
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

static void text_repr(struct jinja_buffer *b, const struct jinja_value *v) {
  if (v->kind == JINJA_TEXT)
    text_quoted(b, v, false);
  else if (v->kind == JINJA_UNDEFINED)
    text_put(b, "Undefined");
  else
    wn_jinja_write(b, v);
}

static void text_pairs(struct jinja_buffer *b, const struct jinja_pair *pairs, size_t count) {
  text_put(b, "{");
  for (size_t i = 0; i < count && !b->run->failed; i++) {
    if (i > 0) text_put(b, ", ");
    text_repr(b, &pairs[i].key);
    text_put(b, ": ");
    text_repr(b, &pairs[i].value);
  }
  text_put(b, "}");
}

void wn_jinja_write(struct jinja_buffer *b, const struct jinja_value *v) {
  if (wn_jinja_enter(b->run)) {
    switch (v->kind) {
    case JINJA_UNDEFINED:
      break;
    case JINJA_NONE:
      text_put(b, "None");
      break;
    case JINJA_BOOL:
      text_put(b, v->as.yes ? "True" : "False");
      break;
    case JINJA_INT:
      text_int(b, v->as.number);
      break;
    case JINJA_FLOAT:
      text_float(b, v->as.real);
      break;
    case JINJA_TEXT:
      wn_jinja_add_text(b, v);
      break;
    case JINJA_LIST:
    case JINJA_TUPLE:
      text_put(b, v->kind == JINJA_LIST ? "[" : "(");
      for (size_t i = 0; i < v->count && !b->run->failed; i++) {
        if (i > 0) text_put(b, ", ");
        text_repr(b, &v->as.items[i]);
      }
      if (v->kind == JINJA_TUPLE && v->count == 1) text_put(b, ",");
      text_put(b, v->kind == JINJA_LIST ? "]" : ")");
      break;
    case JINJA_DICT:
      text_pairs(b, v->as.pairs, v->count);
      break;
    case JINJA_SPACE:
      text_put(b, "<Namespace ");
      text_pairs(b, v->as.space->pairs, v->as.space->count);
      text_put(b, ">");
      break;
    default:
      wn_jinja_fail(b->run, WN_ERR_UNSUPPORTED, "a %s has no text", wn_jinja_kind(v));
    }
  }
  wn_jinja_leave(b->run);
}

struct jinja_value wn_jinja_string(struct jinja_run *r, const struct jinja_value *v) {
  struct jinja_buffer b = {.run = r};
  if (v->kind == JINJA_TEXT) return *v;
  wn_jinja_write(&b, v);
  return wn_jinja_done(&b);
}

/* --- tojson --- */

struct json_style {
  struct jinja_value item, key, indent; /* separators; indent: JINJA_TEXT, or all on one line */
  bool sorted;
};

static void json_line(struct jinja_buffer *b, const struct json_style *s, int level) {
  if (s->indent.kind != JINJA_TEXT) return;
  text_put(b, "\n");
  for (int i = 0; i < level; i++) wn_jinja_add_text(b, &s->indent);
}

static void json_write(struct jinja_buffer *b, const struct jinja_value *v, const struct json_style *s, int level);

static void json_key(struct jinja_buffer *b, const struct jinja_value *key, const struct json_style *s) {
  struct jinja_buffer inner = {.run = b->run};
  if (key->kind == JINJA_TEXT) {
    text_quoted(b, key, true);
    return;
  }
  json_write(&inner, key, s, 0);
  const struct jinja_value text = wn_jinja_done(&inner);
  text_quoted(b, &text, true);
}

static void json_dict(struct jinja_buffer *b, const struct jinja_value *v, const struct json_style *s, int level) {
  const struct jinja_pair *pairs = s->sorted ? wn_jinja_sort(b->run, v->as.pairs, v->count, false) : v->as.pairs;
  text_put(b, v->count ? "{" : "{}");
  for (size_t i = 0; pairs && i < v->count && !b->run->failed; i++) {
    if (i > 0) wn_jinja_add_text(b, &s->item);
    json_line(b, s, level + 1);
    json_key(b, &pairs[i].key, s);
    wn_jinja_add_text(b, &s->key);
    json_write(b, &pairs[i].value, s, level + 1);
  }
  if (v->count) json_line(b, s, level), text_put(b, "}");
}

static void json_write(struct jinja_buffer *b, const struct jinja_value *v, const struct json_style *s, int level) {
  struct jinja_run *r = b->run;
  if (wn_jinja_enter(r)) {
    switch (v->kind) {
    case JINJA_NONE:
      text_put(b, "null");
      break;
    case JINJA_BOOL:
      text_put(b, v->as.yes ? "true" : "false");
      break;
    case JINJA_INT:
      text_int(b, v->as.number);
      break;
    case JINJA_FLOAT:
      if (isfinite(v->as.real))
        text_float(b, v->as.real);
      else
        text_put(b, isnan(v->as.real) ? "NaN" : v->as.real < 0 ? "-Infinity" : "Infinity");
      break;
    case JINJA_TEXT:
      text_quoted(b, v, true);
      break;
    case JINJA_LIST:
    case JINJA_TUPLE:
      text_put(b, v->count ? "[" : "[]");
      for (size_t i = 0; i < v->count && !r->failed; i++) {
        if (i > 0) wn_jinja_add_text(b, &s->item);
        json_line(b, s, level + 1);
        json_write(b, &v->as.items[i], s, level + 1);
      }
      if (v->count) json_line(b, s, level), text_put(b, "]");
      break;
    case JINJA_DICT:
      json_dict(b, v, s, level);
      break;
    default:
      wn_jinja_fail(r, WN_ERR_FORMAT, "tojson: a %s is no JSON", wn_jinja_kind(v));
    }
  }
  wn_jinja_leave(r);
}

struct jinja_value wn_jinja_json(struct jinja_run *r, const struct jinja_call *c) {
  /* indent, ensure_ascii, separators, sort_keys */
  struct jinja_buffer b = {.run = r};
  const struct jinja_value *indent = &c->at[0], *marks = &c->at[2];
  struct json_style s = {.item = jinja_text(", ", 2), .key = jinja_text(": ", 2), .sorted = wn_jinja_true(&c->at[3])};
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
  json_write(&b, &c->self, &s, 0);
  return wn_jinja_done(&b);
}
