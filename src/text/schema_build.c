/* Builds the tables of a schema. Resolving nested alternatives costs values x alternatives and has a limit. Heights
 * take at most as many passes over the tables as texts may be deep. */
#include "text/schema_build.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"

#define FLATTEN_STEPS (1u << 20)
#define REGULAR_STEPS (UINT64_C(1) << 26)

#define TABLE(b, name, type) ((type *)(b)->name.data)

wn_status wn_schema_begin(struct wn_schema_builder *b) {
#define SCHEMA_TABLE(name, type, limit)                                                                                \
  b->name = (struct wn_schema_table){.what = #name, .element = sizeof(type), .most = (limit)}
  SCHEMA_TABLE(shapes, struct wn_shape, WN_SCHEMA_VALUES);
  SCHEMA_TABLE(values, struct wn_value, WN_SCHEMA_VALUES);
  SCHEMA_TABLE(parts, struct wn_part, WN_SCHEMA_VALUES);
  SCHEMA_TABLE(words, struct wn_word, 1u << 15);
  SCHEMA_TABLE(alternatives, uint32_t, 1u << 17);
  SCHEMA_TABLE(text, unsigned char, 1u << 20);
  SCHEMA_TABLE(links, struct wn_schema_link, 1u << 16);
  SCHEMA_TABLE(heads, uint32_t, WN_SCHEMA_VALUES);
#undef SCHEMA_TABLE
  b->regulars = (struct wn_schema_table){
      .what = "regular expressions", .element = sizeof(struct wn_regular *), .most = WN_SCHEMA_VALUES};
  WN_TRY(WN_ALLOC(b->ctx, "a schema", 1, &b->out));
  b->out->users = 1;
  b->steps = REGULAR_STEPS;
  b->made = json_array();
  if (!b->made) return wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  return WN_ALLOC(b->ctx, "a schema", WN_SCHEMA_SLOTS, &b->seen);
}

void wn_schema_end(struct wn_schema_builder *b) {
  struct wn_schema_table *const tables[] = {&b->shapes,       &b->values, &b->parts, &b->words,
                                            &b->alternatives, &b->text,   &b->links, &b->heads};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) wn_free(tables[i]->data);
  for (uint32_t i = 0; i < b->regulars.count && b->regulars.data; i++)
    wn_free(TABLE(b, regulars, struct wn_regular *)[i]);
  wn_free(b->regulars.data);
  wn_free(b->seen);
  json_decref(b->made);
  wn_schema_drop(b->out);
}

struct wn_schema *wn_schema_share(struct wn_schema *s) {
  __atomic_add_fetch(&s->users, 1, __ATOMIC_RELAXED);
  return s;
}

void wn_schema_drop(struct wn_schema *s) {
  if (!s || __atomic_sub_fetch(&s->users, 1, __ATOMIC_ACQ_REL) > 0) return;
  for (uint32_t i = 0; i < s->regular_count; i++) wn_free(s->regulars[i]);
  wn_free(s->regulars);
  wn_free(s->shapes);
  wn_free(s->values);
  wn_free(s->parts);
  wn_free(s->words);
  wn_free(s->alternatives);
  wn_free(s->text);
  wn_free(s);
}

wn_status wn_schema_add(struct wn_schema_builder *b, struct wn_schema_table *t, uint32_t more, uint32_t *at) {
  *at = t->count;
  if (more > t->most - t->count)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the schema is too large: more than %u %s", t->most, t->what);
  WN_TRY(wn_grow(b->ctx, "a schema", &t->data, t->element, t->count, more, &t->capacity));
  t->count += more;
  return WN_OK;
}

wn_status wn_schema_add_value(struct wn_schema_builder *b, uint32_t *value) {
  uint32_t head;
  WN_TRY(wn_schema_add(b, &b->values, 1, value));
  return wn_schema_add(b, &b->heads, 1, &head);
}

wn_status wn_schema_add_link(struct wn_schema_builder *b, uint32_t value, bool shape, uint32_t to) {
  uint32_t at = 0, *head, before = 0;
  WN_TRY(wn_schema_add(b, &b->links, 1, &at));
  TABLE(b, links, struct wn_schema_link)[at] = (struct wn_schema_link){0, to, shape};
  head = &TABLE(b, heads, uint32_t)[value]; /* at the end, which keeps the order of alternatives */
  for (; *head; before++) head = &TABLE(b, links, struct wn_schema_link)[*head - 1].next;
  if (before == WN_SCHEMA_ALTERNATIVES)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the schema has a value of more than %d alternatives",
                   WN_SCHEMA_ALTERNATIVES);
  *head = at + 1;
  return WN_OK;
}

wn_status wn_schema_add_shape(struct wn_schema_builder *b, uint32_t value, const struct wn_shape *shape) {
  uint32_t at = 0;
  WN_TRY(wn_schema_add(b, &b->shapes, 1, &at));
  TABLE(b, shapes, struct wn_shape)[at] = *shape;
  return wn_schema_add_link(b, value, true, at);
}

/* --- words --- */

wn_status wn_schema_set_word(struct wn_schema_builder *b, uint32_t word, const json_t *scalar, bool name,
                             uint32_t part) {
  char *written;
  uint32_t at = 0;
  WN_TRY(wn_json_text(b->ctx, scalar, &written)); /* ends with a newline */
  const uint32_t bytes = (uint32_t)strlen(written) - 1 - name;
  wn_status status = wn_schema_add(b, &b->text, bytes, &at);
  if (status == WN_OK) {
    memcpy(TABLE(b, text, unsigned char) + at, written + name, bytes);
    TABLE(b, words, struct wn_word)[word] = (struct wn_word){at, bytes, part};
  }
  wn_free(written);
  return status;
}

static int schema_compare_words(const void *x, const void *y, void *text) {
  const struct wn_word *a = x, *c = y;
  const unsigned char *bytes = text;
  const int order = memcmp(bytes + a->at, bytes + c->at, a->bytes < c->bytes ? a->bytes : c->bytes);
  return order ? order : (a->bytes > c->bytes) - (a->bytes < c->bytes);
}

void wn_schema_sort_words(struct wn_schema_builder *b, uint32_t first, uint32_t *count) {
  struct wn_word *words = TABLE(b, words, struct wn_word) + first;
  uint32_t kept = 0;
  if (*count == 0) return;
  qsort_r(words, *count, sizeof *words, schema_compare_words, b->text.data);
  for (uint32_t i = 0; i < *count; i++)
    if (kept == 0 || schema_compare_words(&words[kept - 1], &words[i], b->text.data) != 0) words[kept++] = words[i];
  *count = kept;
}

wn_status wn_schema_literals(struct wn_schema_builder *b, uint32_t value, bool boolean, bool null) {
  json_t *const scalars[] = {json_false(), json_null(), json_true()};
  struct wn_shape shape = {.kind = WN_SHAPE_WORDS, .texts = (uint32_t)(2 * boolean + null)};
  if (shape.texts == 0) return WN_OK;
  WN_TRY(wn_schema_add(b, &b->words, shape.texts, &shape.words));
  for (uint32_t i = 0, at = shape.words; i < 3; i++)
    if (i == 1 ? null : boolean) WN_TRY(wn_schema_set_word(b, at++, scalars[i], false, 0));
  return wn_schema_add_shape(b, value, &shape);
}

/* --- any value --- */

wn_status wn_schema_any_object(struct wn_schema_builder *b, uint32_t *value) {
  struct wn_shape object = {.kind = WN_SHAPE_OBJECT};
  uint32_t any = 0;
  WN_TRY(wn_schema_any(b, &any));
  if (!b->any_object) {
    WN_TRY(wn_schema_add_value(b, value));
    b->any_object = *value + 1;
    object.rest = (int32_t)any;
    WN_TRY(wn_schema_add_shape(b, *value, &object));
  }
  *value = b->any_object - 1;
  return WN_OK;
}

wn_status wn_schema_any(struct wn_schema_builder *b, uint32_t *value) {
  uint32_t object = 0;
  if (b->any) {
    *value = b->any - 1;
    return WN_OK;
  }
  WN_TRY(wn_schema_add_value(b, value));
  const uint32_t any = *value;
  b->any = any + 1;
  WN_TRY(wn_schema_any_object(b, &object));
  WN_TRY(wn_schema_add_link(b, any, false, object));
  WN_TRY(
      wn_schema_add_shape(b, any, &(struct wn_shape){.kind = WN_SHAPE_ARRAY, .rest = (int32_t)any, .max = INT64_MAX}));
  WN_TRY(wn_schema_add_shape(b, any, &(struct wn_shape){.kind = WN_SHAPE_STRING, .max = INT64_MAX}));
  WN_TRY(wn_schema_add_shape(b, any, &(struct wn_shape){.kind = WN_SHAPE_NUMBER}));
  return wn_schema_literals(b, any, true, true);
}

struct wn_schema_seen *wn_schema_seen(struct wn_schema_builder *b, const json_t *json) {
  uint32_t at = (uint32_t)(((uintptr_t)json >> 4) * 0x9E3779B97F4A7C15u >> 40) & (WN_SCHEMA_SLOTS - 1);
  while (b->seen[at].json && b->seen[at].json != json) at = (at + 1) & (WN_SCHEMA_SLOTS - 1);
  return &b->seen[at];
}

/* --- finishing --- */

struct flattening {
  struct wn_schema_builder *b;
  uint32_t *mark;    /* [values + shapes] the last value that reached it, + 1 */
  uint32_t *waiting; /* [values] */
  uint32_t steps;
};

/* Collects the shapes that a value's links lead to, each once. */
static wn_status schema_flatten_value(struct flattening *f, uint32_t value) {
  struct wn_schema_builder *b = f->b;
  struct wn_schema_table *out = &b->alternatives;
  uint32_t first = out->count, waiting = 0, at = 0;
  f->waiting[waiting++] = value;
  f->mark[value] = value + 1;
  while (waiting > 0) {
    const uint32_t from = f->waiting[--waiting];
    for (uint32_t i = TABLE(b, heads, uint32_t)[from]; i;) {
      const struct wn_schema_link link = TABLE(b, links, struct wn_schema_link)[i - 1];
      uint32_t *mark = &f->mark[link.shape ? b->values.count + link.to : link.to];
      i = link.next;
      if (++f->steps > FLATTEN_STEPS)
        return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the schema is too large: alternatives of alternatives");
      if (*mark == value + 1) continue;
      *mark = value + 1;
      if (!link.shape) {
        f->waiting[waiting++] = link.to;
        continue;
      }
      WN_TRY(wn_schema_add(b, out, 1, &at));
      TABLE(b, alternatives, uint32_t)[at] = link.to;
    }
  }
  struct wn_value *v = &TABLE(b, values, struct wn_value)[value];
  *v = (struct wn_value){first, out->count - first, WN_SCHEMA_NEVER};
  if (v->count > WN_SCHEMA_ALTERNATIVES)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the schema has a value of %u alternatives; at most %d are served",
                   v->count, WN_SCHEMA_ALTERNATIVES);
  return WN_OK;
}

static wn_status schema_flatten(struct wn_schema_builder *b) {
  struct flattening f = {.b = b};
  WN_TRY(WN_ALLOC(b->ctx, "a schema", b->values.count + b->shapes.count, &f.mark));
  wn_status status = WN_ALLOC(b->ctx, "a schema", b->values.count, &f.waiting);
  for (uint32_t i = 0; i < b->values.count && status == WN_OK; i++) status = schema_flatten_value(&f, i);
  wn_free(f.mark);
  wn_free(f.waiting);
  return status;
}

static int32_t schema_height_of(const struct wn_schema_builder *b, const struct wn_shape *s) {
  const struct wn_value *values = b->values.data;
  const struct wn_part *parts = b->parts.data;
  int32_t most = 0;
  if (s->kind == WN_SHAPE_WORDS) return s->texts > 0 ? 0 : WN_SCHEMA_NEVER;
  if (s->kind == WN_SHAPE_NUMBER) return 0;
  if (s->kind != WN_SHAPE_OBJECT && s->min > s->max) return WN_SCHEMA_NEVER;
  if (s->regular && !TABLE(b, regulars, struct wn_regular *)[s->regular - 1]->goes) return WN_SCHEMA_NEVER;
  if (s->kind == WN_SHAPE_STRING || s->kind == WN_SHAPE_DECIMAL) return 0;
  for (uint32_t i = 0; i < s->count; i++) {
    const int32_t height = values[parts[s->first + i].value].height;
    const bool needed = s->kind == WN_SHAPE_OBJECT ? parts[s->first + i].required : i < s->min;
    if (needed && height > most) most = height;
  }
  if (s->kind == WN_SHAPE_ARRAY && s->min > s->count) {
    const int32_t height = s->rest < 0 ? WN_SCHEMA_NEVER : values[s->rest].height;
    if (height > most) most = height;
  }
  return most < WN_SCHEMA_DEPTH ? most + 1 : WN_SCHEMA_NEVER;
}

static void schema_heights(struct wn_schema_builder *b) {
  struct wn_shape *shapes = b->shapes.data;
  struct wn_value *values = b->values.data;
  const uint32_t *alternatives = b->alternatives.data;
  for (uint32_t i = 0; i < b->shapes.count; i++) shapes[i].height = WN_SCHEMA_NEVER;
  for (bool again = true; again;) { /* after n passes all heights up to n are final */
    again = false;
    for (uint32_t i = 0; i < b->shapes.count; i++) shapes[i].height = schema_height_of(b, &shapes[i]);
    for (uint32_t i = 0; i < b->values.count; i++) {
      int32_t least = WN_SCHEMA_NEVER;
      for (uint32_t k = 0; k < values[i].count; k++) {
        const int32_t height = shapes[alternatives[values[i].first + k]].height;
        if (height < least) least = height;
      }
      if (least != values[i].height) again = true;
      values[i].height = least;
    }
  }
}

wn_status wn_schema_finish(struct wn_schema_builder *b, uint32_t root) {
  struct wn_schema *s = b->out;
  WN_TRY(schema_flatten(b));
  schema_heights(b);
  if (TABLE(b, values, struct wn_value)[root].height > WN_SCHEMA_DEPTH)
    return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "no value fits the schema, or only one that is nested deeper than %d",
                   WN_SCHEMA_DEPTH);
#define SCHEMA_TAKE(name) s->name = b->name.data, b->name.data = NULL
  SCHEMA_TAKE(shapes);
  SCHEMA_TAKE(values);
  SCHEMA_TAKE(parts);
  SCHEMA_TAKE(words);
  SCHEMA_TAKE(alternatives);
  SCHEMA_TAKE(text);
  SCHEMA_TAKE(regulars);
#undef SCHEMA_TAKE
  s->root = root;
  s->text_bytes = b->text.count;
  s->regular_count = b->regulars.count;
  return WN_OK;
}
