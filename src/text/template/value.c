/* Values: memory, truth, equality, order, and what they are made of. */
#include "text/template/jinja.h"

#include <stdarg.h>
#include "base/alloc.h"
#include "base/number.h"
#include "base/text.h"
#include "text/utf8.h"

enum { BLOCK = 64 << 10 };
struct jinja_value wn_jinja_fail(struct jinja_run *r, wn_status status, const char *format, ...) {
  char text[300];
  va_list args;
  if (!r->failed) {
    va_start(args, format);
    wn_print_list(text, sizeof text, format, args);
    va_end(args);
    r->failed = true;
    r->status = wn_fail(r->ctx, status, "the chat template, line %d: %s", r->line, text);
  }
  return (struct jinja_value){0};
}

void *wn_jinja_memory(struct jinja_run *r, size_t count, size_t size) {
  size_t bytes;
  if (r->failed || count == 0) return NULL;
  if (!wn_mul_size(count, size, &bytes) || bytes > r->left) {
    wn_jinja_fail(r, WN_ERR_FORMAT, "it takes more than %zu MiB of memory", WN_TEMPLATE_MEMORY >> 20);
    return NULL;
  }
  bytes = (bytes + 15) & ~(size_t)15;
  if (!r->blocks || r->blocks->room - r->blocks->used < bytes) {
    const size_t room = bytes > BLOCK ? bytes : BLOCK;
    void *p;
    const wn_status status = wn_alloc(r->ctx, "a chat template", sizeof(struct jinja_block) + room, &p);
    if (status != WN_OK) {
      r->failed = true;
      r->status = status;
      return NULL;
    }
    struct jinja_block *b = p;
    b->next = r->blocks, b->room = room;
    r->blocks = b;
  }
  char *out = r->blocks->data + r->blocks->used;
  r->blocks->used += bytes;
  r->left -= bytes < r->left ? bytes : r->left;
  return out;
}

bool wn_jinja_step(struct jinja_run *r, size_t bytes) {
  const size_t steps = 1 + bytes / 32;
  if (r->failed) return false;
  if (steps > r->steps) {
    wn_jinja_fail(r, WN_ERR_FORMAT, "it takes more than %d steps", WN_TEMPLATE_STEPS);
    return false;
  }
  r->steps -= steps;
  return true;
}

bool wn_jinja_enter(struct jinja_run *r) {
  if (++r->depth > WN_TEMPLATE_DEPTH)
    wn_jinja_fail(r, WN_ERR_FORMAT, "more than %d expressions and statements within each other", WN_TEMPLATE_DEPTH);
  return wn_jinja_step(r, 0);
}

/* A role is one of those that templates know, so that "<|" + role + "|>" is the template's. */
static bool value_is_role(const char *text) {
  static const char *const roles[] = {"system", "user", "assistant", "tool", "developer", NULL};
  return text && wn_listed(roles, text);
}

static struct jinja_value value_from_object(struct jinja_run *r, const json_t *j, enum wn_origin origin) {
  struct jinja_pair *pairs = wn_jinja_memory(r, json_object_size(j), sizeof *pairs);
  const char *key;
  json_t *value;
  size_t n = 0;
  if (!pairs) return (struct jinja_value){.kind = JINJA_DICT};
  json_object_foreach((json_t *)(uintptr_t)j, key, value) {
    const bool role = !strcmp(key, "role") && value_is_role(json_string_value(value));
    pairs[n].key = jinja_text(key, strlen(key));
    pairs[n].key.origin = (unsigned char)origin;
    pairs[n++].value = wn_jinja_from_json(r, value, role ? WN_ORIGIN_TEMPLATE : origin);
  }
  return (struct jinja_value){.kind = JINJA_DICT, .as.pairs = pairs, .count = n};
}

struct jinja_value wn_jinja_from_json(struct jinja_run *r, const json_t *j, enum wn_origin origin) {
  struct jinja_value out = {0};
  const bool deep = !wn_jinja_enter(r);
  switch (deep || !j ? JSON_NULL : json_typeof(j)) {
  case JSON_OBJECT:
    out = value_from_object(r, j, origin);
    break;
  case JSON_ARRAY: {
    struct jinja_value *items = wn_jinja_memory(r, json_array_size(j), sizeof *items);
    out = jinja_list(items, items ? json_array_size(j) : 0);
    for (size_t i = 0; i < out.count; i++) {
      const enum wn_origin own = j == r->input->numbered ? WN_ORIGIN_NUMBERED + (unsigned)i % WN_ORIGINS : origin;
      items[i] = wn_jinja_from_json(r, json_array_get(j, i), own);
    }
    break;
  }
  case JSON_STRING:
    out = jinja_text(json_string_value(j), json_string_length(j));
    out.origin = (unsigned char)origin;
    for (int i = 0; i < 2; i++)
      if (j == r->input->marked[i]) out.origin = (unsigned char)(WN_ORIGIN_MARKED + i);
    break;
  case JSON_INTEGER:
    out = jinja_int(json_integer_value(j));
    break;
  case JSON_REAL:
    out = jinja_float(json_real_value(j));
    break;
  case JSON_TRUE:
  case JSON_FALSE:
    out = jinja_bool(json_is_true(j));
    break;
  case JSON_NULL:
    out = jinja_none();
    break;
  }
  wn_jinja_leave(r);
  return out;
}

struct jinja_value wn_jinja_part(const struct jinja_value *text, size_t begin, size_t end) {
  struct jinja_value out = *text;
  if (begin >= end) return (struct jinja_value){.kind = JINJA_TEXT, .as.text = "", .origin = text->origin};
  out.as.text += begin;
  out.count = end - begin;
  if (out.from) out.from += begin;
  return out;
}

const char *wn_jinja_kind(const struct jinja_value *v) {
  static const char *const names[] = {"Undefined", "NoneType", "bool",      "int",         "float", "str",   "list",
                                      "tuple",     "dict",     "Namespace", "LoopContext", "Macro", "method"};
  return names[v->kind];
}

bool wn_jinja_true(const struct jinja_value *v) {
  switch (v->kind) {
  case JINJA_UNDEFINED:
  case JINJA_NONE:
    return false;
  case JINJA_BOOL:
    return v->as.yes;
  case JINJA_INT:
    return v->as.number != 0;
  case JINJA_FLOAT:
    return v->as.real != 0;
  case JINJA_TEXT:
  case JINJA_LIST:
  case JINJA_TUPLE:
  case JINJA_DICT:
    return v->count > 0;
  default:
    return true;
  }
}

static bool value_equal_dicts(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b) {
  for (size_t i = 0; i < a->count && !r->failed; i++) {
    const struct jinja_value *other = wn_jinja_find(r, b->as.pairs, b->count, &a->as.pairs[i].key);
    if (!other || !wn_jinja_equal(r, &a->as.pairs[i].value, other)) return false;
  }
  return a->count == b->count;
}

bool wn_jinja_equal(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b) {
  bool same = false;
  if (jinja_numeric(a) && jinja_numeric(b))
    return jinja_whole(a) && jinja_whole(b) ? jinja_whole_of(a) == jinja_whole_of(b)
                                            : jinja_real_of(a) == jinja_real_of(b);
  if (a->kind != b->kind) return false;
  if (a->kind == JINJA_TEXT) return wn_jinja_step(r, a->count == b->count ? a->count : 0) && jinja_same(a, b);
  if (wn_jinja_enter(r)) {
    switch (a->kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
      same = true;
      break;
    case JINJA_LIST:
    case JINJA_TUPLE:
      same = a->count == b->count;
      for (size_t i = 0; same && i < a->count; i++) same = wn_jinja_equal(r, &a->as.items[i], &b->as.items[i]);
      break;
    case JINJA_DICT:
      same = value_equal_dicts(r, a, b);
      break;
    case JINJA_SPACE:
      same = a->as.space == b->as.space;
      break;
    case JINJA_LOOP:
      same = a->as.loop == b->as.loop;
      break;
    case JINJA_MACRO:
      same = a->as.macro == b->as.macro;
      break;
    default:
      break;
    }
  }
  wn_jinja_leave(r);
  return same && !r->failed;
}

int wn_jinja_order(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b) {
  int order = 0;
  if (jinja_whole(a) && jinja_whole(b)) {
    const int64_t x = jinja_whole_of(a), y = jinja_whole_of(b);
    return x < y ? -1 : x > y;
  }
  if (jinja_numeric(a) && jinja_numeric(b)) {
    const double x = jinja_real_of(a), y = jinja_real_of(b);
    return x < y ? -1 : x > y;
  }
  const size_t n = a->count < b->count ? a->count : b->count;
  if (a->kind == JINJA_TEXT && b->kind == JINJA_TEXT) {
    if (!wn_jinja_step(r, n)) return 0;
    order = n ? memcmp(a->as.text, b->as.text, n) : 0; /* the order of UTF-8 is that of the characters */
  } else if (jinja_listed(a) && a->kind == b->kind) {
    if (wn_jinja_enter(r))
      for (size_t i = 0; i < n && order == 0 && !r->failed; i++)
        if (!wn_jinja_equal(r, &a->as.items[i], &b->as.items[i]))
          order = wn_jinja_order(r, &a->as.items[i], &b->as.items[i]);
    wn_jinja_leave(r);
  } else {
    wn_jinja_fail(r, WN_ERR_FORMAT, "%s and %s have no order", wn_jinja_kind(a), wn_jinja_kind(b));
    return 0;
  }
  return order ? order : a->count < b->count ? -1 : a->count > b->count;
}

bool wn_jinja_contains(struct jinja_run *r, const struct jinja_value *all, const struct jinja_value *one) {
  if (all->kind == JINJA_TEXT && one->kind == JINJA_TEXT)
    return wn_jinja_step(r, all->count) &&
           (one->count == 0 || memmem(all->as.text, all->count, one->as.text, one->count) != NULL);
  if (all->kind == JINJA_TEXT) {
    wn_jinja_fail(r, WN_ERR_FORMAT, "%s in a text: expected a text", wn_jinja_kind(one));
    return false;
  }
  if (all->kind == JINJA_DICT) return wn_jinja_find(r, all->as.pairs, all->count, one) != NULL;
  const struct jinja_value items = wn_jinja_items(r, all);
  for (size_t i = 0; i < items.count && wn_jinja_step(r, 0); i++)
    if (wn_jinja_equal(r, &items.as.items[i], one)) return true;
  return false;
}

size_t wn_jinja_character(const char *text, size_t bytes) {
  const int n = wn_utf8_sequence(text, bytes);
  return n > 0 ? (size_t)n : 1;
}

size_t wn_jinja_characters(struct jinja_run *r, const struct jinja_value *text) {
  size_t n = 0;
  if (!wn_jinja_step(r, text->count)) return 0;
  for (size_t at = 0; at < text->count; n++) at += wn_jinja_character(text->as.text + at, text->count - at);
  return n;
}

struct jinja_value wn_jinja_items(struct jinja_run *r, const struct jinja_value *v) {
  struct jinja_value *items;
  size_t n = 0;
  switch (v->kind) {
  case JINJA_UNDEFINED:
    return jinja_list(NULL, 0);
  case JINJA_LIST:
  case JINJA_TUPLE:
    return *v;
  case JINJA_DICT:
    items = wn_jinja_memory(r, v->count, sizeof *items);
    for (; items && n < v->count; n++) items[n] = v->as.pairs[n].key;
    return jinja_list(items, n);
  case JINJA_TEXT:
    items = wn_jinja_memory(r, wn_jinja_characters(r, v), sizeof *items);
    for (size_t at = 0, more; items && at < v->count; at += more) {
      more = wn_jinja_character(v->as.text + at, v->count - at);
      items[n++] = wn_jinja_part(v, at, at + more);
    }
    return jinja_list(items, n);
  default:
    return wn_jinja_fail(r, WN_ERR_FORMAT, "'%s' object is not iterable", wn_jinja_kind(v));
  }
}

const struct jinja_value *wn_jinja_find(struct jinja_run *r, const struct jinja_pair *pairs, size_t count,
                                        const struct jinja_value *key) {
  for (size_t i = 0; i < count && wn_jinja_step(r, 0); i++)
    if (wn_jinja_equal(r, &pairs[i].key, key)) return &pairs[i].value;
  return NULL;
}

void wn_jinja_set(struct jinja_run *r, struct jinja_frame *frame, const struct jinja_value *key,
                  const struct jinja_value *value) {
  struct jinja_value *there = (struct jinja_value *)(uintptr_t)wn_jinja_find(r, frame->pairs, frame->count, key);
  if (there) {
    *there = *value;
    return;
  }
  if (frame->count == frame->room) {
    struct jinja_pair *wider = wn_jinja_memory(r, 2 * frame->room + 8, sizeof *wider);
    if (!wider) return;
    if (frame->count) memcpy(wider, frame->pairs, frame->count * sizeof *wider);
    frame->pairs = wider;
    frame->room = 2 * frame->room + 8;
  }
  if (!r->failed) frame->pairs[frame->count++] = (struct jinja_pair){*key, *value};
}

struct jinja_pair *wn_jinja_sort(struct jinja_run *r, const struct jinja_pair *pairs, size_t count, bool reverse) {
  struct jinja_pair *out = wn_jinja_memory(r, count, sizeof *out);
  for (size_t i = 0; out && i < count && !r->failed; i++) {
    size_t low = 0, high = i;
    while (low < high && !r->failed) {
      const size_t middle = (low + high) / 2;
      const int order = wn_jinja_order(r, &pairs[i].key, &out[middle].key);
      if (reverse ? order > 0 : order < 0)
        high = middle;
      else
        low = middle + 1;
    }
    if (!wn_jinja_step(r, (i - low) * sizeof *out)) break;
    memmove(out + low + 1, out + low, (i - low) * sizeof *out);
    out[low] = pairs[i];
  }
  return r->failed ? NULL : out;
}
