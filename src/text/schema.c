/* Reads JSON schemas (json-schema.org, draft 2020-12), the supported part. There is an entry for each keyword; an
 * unknown keyword is refused by name. Any text generated is valid under the schema; if a schema without a type has
 * keywords of one type, only that type is generated. */
#include "text/schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "text/schema_build.h"

enum { CONSTANTS = 4096 }; /* most values of an enum */

/* A place in the schema, for messages: "#/properties/a". */
struct place {
  const struct place *up;
  const char *key; /* NULL: it is element `index` of a list */
  size_t index;
  int depth;
};

enum {
  TYPE_OBJECT = 1,
  TYPE_ARRAY = 2,
  TYPE_STRING = 4,
  TYPE_NUMBER = 8,
  TYPE_INTEGER = 16,
  TYPE_BOOLEAN = 32,
  TYPE_NULL = 64,
  TYPES = 7
};
static const char *const type_names[TYPES] = {"object", "array", "string", "number", "integer", "boolean", "null"};

/* The keywords of one schema; NULL: absent. */
struct keywords {
  const json_t *type, *properties, *required, *additional, *items, *prefix, *min_items, *max_items, *min_length,
      *max_length, *minimum, *maximum, *above, *below, *enumeration, *constant, *any_of, *all_of, *ref;
};

static const struct row {
  const char *name;
  size_t at;   /* SIZE_MAX: an annotation, which restricts nothing */
  unsigned of; /* the type that it applies to; 0: any */
  bool alone;  /* excludes all other keywords but annotations */
} rows[] = {
#define SCHEMA_ROW(keyword, member, types, only)                                                                       \
  { .name = (keyword), .at = offsetof(struct keywords, member), .of = (types), .alone = (only) }
    SCHEMA_ROW("type", type, 0, false),
    SCHEMA_ROW("properties", properties, TYPE_OBJECT, false),
    SCHEMA_ROW("required", required, TYPE_OBJECT, false),
    SCHEMA_ROW("additionalProperties", additional, TYPE_OBJECT, false),
    SCHEMA_ROW("items", items, TYPE_ARRAY, false),
    SCHEMA_ROW("prefixItems", prefix, TYPE_ARRAY, false),
    SCHEMA_ROW("minItems", min_items, TYPE_ARRAY, false),
    SCHEMA_ROW("maxItems", max_items, TYPE_ARRAY, false),
    SCHEMA_ROW("minLength", min_length, TYPE_STRING, false),
    SCHEMA_ROW("maxLength", max_length, TYPE_STRING, false),
    SCHEMA_ROW("minimum", minimum, TYPE_INTEGER, false),
    SCHEMA_ROW("maximum", maximum, TYPE_INTEGER, false),
    SCHEMA_ROW("exclusiveMinimum", above, TYPE_INTEGER, false),
    SCHEMA_ROW("exclusiveMaximum", below, TYPE_INTEGER, false),
    SCHEMA_ROW("enum", enumeration, 0, false),
    SCHEMA_ROW("const", constant, 0, false),
    SCHEMA_ROW("anyOf", any_of, 0, true),
    SCHEMA_ROW("allOf", all_of, 0, true),
    SCHEMA_ROW("$ref", ref, 0, true),
#undef SCHEMA_ROW
    {.name = "$schema", .at = SIZE_MAX},
    {.name = "$id", .at = SIZE_MAX},
    {.name = "$defs", .at = SIZE_MAX},
    {.name = "definitions", .at = SIZE_MAX},
    {.name = "$comment", .at = SIZE_MAX},
    {.name = "title", .at = SIZE_MAX},
    {.name = "description", .at = SIZE_MAX},
    {.name = "default", .at = SIZE_MAX},
    {.name = "examples", .at = SIZE_MAX},
    {.name = "deprecated", .at = SIZE_MAX},
    {.name = "readOnly", .at = SIZE_MAX},
    {.name = "writeOnly", .at = SIZE_MAX},
};

static wn_status schema_read(struct wn_schema_builder *b, const json_t *json, const struct place *at, uint32_t *value);

static void schema_path(const struct place *at, char *out, size_t bytes) {
  size_t used;
  if (at->up) {
    schema_path(at->up, out, bytes);
    used = strlen(out);
    if (at->key && bytes - used > 1) {
      out[used++] = '/';
      wn_line_escape(at->key, out + used, bytes - used); /* keeps characters whole */
    } else if (!at->key) {
      snprintf(out + used, bytes - used, "/%zu", at->index);
    }
  } else {
    snprintf(out, bytes, "%s", at->key);
  }
}

__attribute__((format(printf, 4, 5))) static wn_status schema_refuse(struct wn_schema_builder *b, wn_status status,
                                                                     const struct place *at, const char *format, ...) {
  char path[200], line[200];
  va_list args;
  va_start(args, format);
  wn_print_list(line, sizeof line, format, args);
  va_end(args);
  schema_path(at, path, sizeof path);
  return wn_fail(b->ctx, status, "schema %s: %s", path, line);
}

static struct place schema_under(const struct place *up, const char *key, size_t index) {
  return (struct place){.up = up, .key = key, .index = index, .depth = up->depth + 1};
}

/* Reads one schema inside a list or an object of schemas. */
static wn_status schema_read_member(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                    const char *keyword, const char *key, size_t index, uint32_t *value) {
  const struct place under = schema_under(at, keyword, 0), member = schema_under(&under, key, index);
  return schema_read(b, json, &member, value);
}

/* --- constants --- */

static unsigned schema_type_of(const json_t *json) {
  switch (json_typeof(json)) {
  case JSON_OBJECT:
    return TYPE_OBJECT;
  case JSON_ARRAY:
    return TYPE_ARRAY;
  case JSON_STRING:
    return TYPE_STRING;
  case JSON_INTEGER:
    return TYPE_INTEGER | TYPE_NUMBER;
  case JSON_REAL:
    return TYPE_NUMBER | (floor(json_real_value(json)) == json_real_value(json) ? TYPE_INTEGER : 0);
  case JSON_TRUE:
  case JSON_FALSE:
    return TYPE_BOOLEAN;
  case JSON_NULL:
    break;
  }
  return TYPE_NULL;
}

static wn_status schema_constants(struct wn_schema_builder *b, const json_t *const *list, size_t count, uint32_t value,
                                  const struct place *at);

/* Adds the name of an object's property. */
static wn_status schema_name(struct wn_schema_builder *b, uint32_t word, const char *name, uint32_t part) {
  json_t *text = json_string(name);
  if (!text) return wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  const wn_status status = wn_schema_set_word(b, word, text, true, part);
  json_decref(text);
  return status;
}

/* Adds the elements or properties of a constant, each a value of its own. */
static wn_status schema_constant_parts(struct wn_schema_builder *b, const json_t *json, uint32_t value,
                                       const struct place *at) {
  const bool object = json_is_object(json);
  const uint32_t n = (uint32_t)(object ? json_object_size(json) : json_array_size(json));
  struct wn_shape shape = {
      .kind = object ? WN_SHAPE_OBJECT : WN_SHAPE_ARRAY, .count = n, .rest = -1, .min = n, .max = n};
  void *member = object ? json_object_iter((json_t *)(uintptr_t)json) : NULL;
  if (at->depth > WN_SCHEMA_DEPTH)
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "nested deeper than %d", WN_SCHEMA_DEPTH);
  WN_TRY(wn_schema_add(b, &b->parts, n, &shape.first));
  if (object) WN_TRY(wn_schema_add(b, &b->words, n, &shape.words));
  for (uint32_t i = 0; i < n; i++) {
    const json_t *one = object ? json_object_iter_value(member) : json_array_get(json, i);
    const struct place under = schema_under(at, object ? json_object_iter_key(member) : NULL, i);
    uint32_t part;
    WN_TRY(wn_schema_add_value(b, &part));
    WN_TRY(schema_constants(b, &one, 1, part, &under));
    ((struct wn_part *)b->parts.data)[shape.first + i] = (struct wn_part){part, true};
    if (object) WN_TRY(schema_name(b, shape.words + i, json_object_iter_key(member), i));
    if (object) member = json_object_iter_next((json_t *)(uintptr_t)json, member);
  }
  shape.texts = object ? n : 0;
  if (object) wn_schema_sort_words(b, shape.words, &shape.texts);
  return wn_schema_add_shape(b, value, &shape);
}

/* The value must be one of a list. */
static wn_status schema_constants(struct wn_schema_builder *b, const json_t *const *list, size_t count, uint32_t value,
                                  const struct place *at) {
  struct wn_shape words = {.kind = WN_SHAPE_WORDS};
  for (size_t i = 0; i < count; i++) words.texts += !json_is_object(list[i]) && !json_is_array(list[i]);
  if (words.texts > 0) WN_TRY(wn_schema_add(b, &b->words, words.texts, &words.words));
  for (size_t i = 0, at_word = words.words; i < count; i++) {
    const struct place under = schema_under(at, NULL, i);
    if (json_is_object(list[i]) || json_is_array(list[i]))
      WN_TRY(schema_constant_parts(b, list[i], value, &under));
    else
      WN_TRY(wn_schema_set_word(b, (uint32_t)at_word++, list[i], false, 0));
  }
  wn_schema_sort_words(b, words.words, &words.texts);
  return words.texts > 0 ? wn_schema_add_shape(b, value, &words) : WN_OK;
}

/* enum and const; constants of other types are dropped. */
static wn_status schema_read_constants(struct wn_schema_builder *b, const struct keywords *k, unsigned types,
                                       uint32_t value, const struct place *at) {
  const struct place under = schema_under(at, k->constant ? "const" : "enum", 0);
  const json_t *list[CONSTANTS];
  size_t count = 0;
  if (k->constant && k->enumeration)
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"enum\" and \"const\" together are not served");
  const size_t n = k->constant ? 1 : json_array_size(k->enumeration);
  if (n == 0 || n > CONSTANTS)
    return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of 1 to %d values", CONSTANTS);
  for (size_t i = 0; i < n; i++) {
    const json_t *one = k->constant ? k->constant : json_array_get(k->enumeration, i);
    if (schema_type_of(one) & types) list[count++] = one;
  }
  return schema_constants(b, list, count, value, &under);
}

/* --- keywords of types --- */

static wn_status schema_read_count(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                   const char *keyword, int64_t *out) {
  const struct place under = schema_under(at, keyword, 0);
  const double count = json_number_value(json);
  if (!json) return WN_OK;
  if (!json_is_number(json) || count < 0 || count != floor(count))
    return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a whole number of at least 0");
  *out = count < (double)INT32_MAX ? (int64_t)count : INT32_MAX;
  return WN_OK;
}

/* The least integer that a lower bound allows. With sign -1: for an upper bound, both negated. */
static wn_status schema_read_bound(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                   const char *keyword, int sign, int64_t *least) {
  const struct place under = schema_under(at, keyword, 0);
  int64_t bound = 0;
  if (!json) return WN_OK;
  if (!json_is_number(json)) return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a number");
  const bool beyond = keyword[0] == 'e'; /* in exclusiveMinimum and exclusiveMaximum */
  const double value = sign * json_number_value(json), up = ceil(value);
  if (json_is_integer(json) && fabs(value) < 1e18)
    bound = sign * json_integer_value(json) + beyond;
  else /* from 2^53 on, adding 1 to a double may not change it */
    bound = up >= 1e18 ? WN_SCHEMA_DIGITS + 1 : up <= -1e18 ? -WN_SCHEMA_DIGITS : (int64_t)up + (beyond && value == up);
  if (bound > *least) *least = bound;
  return WN_OK;
}

static wn_status schema_read_integer(struct wn_schema_builder *b, const struct keywords *k, uint32_t value,
                                     const struct place *at) {
  int64_t low = -WN_SCHEMA_DIGITS, high = -WN_SCHEMA_DIGITS;
  WN_TRY(schema_read_bound(b, k->minimum, at, "minimum", 1, &low));
  WN_TRY(schema_read_bound(b, k->above, at, "exclusiveMinimum", 1, &low));
  WN_TRY(schema_read_bound(b, k->maximum, at, "maximum", -1, &high));
  WN_TRY(schema_read_bound(b, k->below, at, "exclusiveMaximum", -1, &high));
  return wn_schema_add_shape(b, value, &(struct wn_shape){.kind = WN_SHAPE_INTEGER, .min = low, .max = -high});
}

static wn_status schema_read_string(struct wn_schema_builder *b, const struct keywords *k, uint32_t value,
                                    const struct place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_STRING, .max = INT64_MAX};
  WN_TRY(schema_read_count(b, k->min_length, at, "minLength", &shape.min));
  WN_TRY(schema_read_count(b, k->max_length, at, "maxLength", &shape.max));
  return wn_schema_add_shape(b, value, &shape);
}

/* items or additionalProperties: the schema of further elements or of other properties. */
static wn_status schema_read_rest(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                  const char *keyword, int32_t *rest) {
  const struct place under = schema_under(at, keyword, 0);
  uint32_t value;
  *rest = -1;
  if (json_is_false(json)) return WN_OK;
  WN_TRY(json ? schema_read(b, json, &under, &value) : wn_schema_any(b, &value));
  *rest = (int32_t)value;
  return WN_OK;
}

static wn_status schema_read_array(struct wn_schema_builder *b, const struct keywords *k, uint32_t value,
                                   const struct place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_ARRAY, .max = INT64_MAX, .count = (uint32_t)json_array_size(k->prefix)};
  if (k->prefix && !json_is_array(k->prefix)) {
    const struct place under = schema_under(at, "prefixItems", 0);
    return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of schemas");
  }
  WN_TRY(schema_read_count(b, k->min_items, at, "minItems", &shape.min));
  WN_TRY(schema_read_count(b, k->max_items, at, "maxItems", &shape.max));
  WN_TRY(schema_read_rest(b, k->items, at, "items", &shape.rest));
  WN_TRY(wn_schema_add(b, &b->parts, shape.count, &shape.first));
  for (uint32_t i = 0; i < shape.count; i++) {
    uint32_t part;
    WN_TRY(schema_read_member(b, json_array_get(k->prefix, i), at, "prefixItems", NULL, i, &part));
    ((struct wn_part *)b->parts.data)[shape.first + i].value = part;
  }
  return wn_schema_add_shape(b, value, &shape);
}

/* The required names, as the keys of a new object. */
static wn_status schema_read_required(struct wn_schema_builder *b, const json_t *list, const struct place *at,
                                      json_t **names) {
  const struct place under = schema_under(at, "required", 0);
  *names = json_object();
  bool failed = !*names;
  for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
    const char *name = json_string_value(json_array_get(list, i));
    if (!name) return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of names");
    failed = json_object_set_new(*names, name, json_true()) != 0;
  }
  if (failed) return wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  if (list && !json_is_array(list)) return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of names");
  return WN_OK;
}

/* The properties in their order, then required names that have no schema of their own. */
static wn_status schema_read_properties(struct wn_schema_builder *b, const struct keywords *k, json_t *required,
                                        struct wn_shape *shape, const struct place *at) {
  json_t *properties = (json_t *)(uintptr_t)k->properties, *json;
  const char *name;
  uint32_t i = 0, value;
  shape->count = (uint32_t)json_object_size(properties);
  json_object_foreach(required, name, json) shape->count += json_object_get(properties, name) == NULL;
  shape->texts = shape->count;
  WN_TRY(wn_schema_add(b, &b->parts, shape->count, &shape->first));
  WN_TRY(wn_schema_add(b, &b->words, shape->count, &shape->words));
  json_object_foreach(properties, name, json) {
    WN_TRY(schema_read_member(b, json, at, "properties", name, 0, &value));
    ((struct wn_part *)b->parts.data)[shape->first + i] =
        (struct wn_part){value, json_object_get(required, name) != NULL};
    WN_TRY(schema_name(b, shape->words + i, name, i));
    i++;
  }
  json_object_foreach(required, name, json) {
    if (json_object_get(properties, name)) continue;
    value = (uint32_t)shape->rest;
    if (shape->rest < 0) WN_TRY(wn_schema_add_value(b, &value)); /* a value that nothing fits */
    ((struct wn_part *)b->parts.data)[shape->first + i] = (struct wn_part){value, true};
    WN_TRY(schema_name(b, shape->words + i, name, i));
    i++;
  }
  wn_schema_sort_words(b, shape->words, &shape->texts);
  return WN_OK;
}

static wn_status schema_read_object(struct wn_schema_builder *b, const struct keywords *k, uint32_t value,
                                    const struct place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_OBJECT};
  json_t *required = NULL;
  if (k->properties && !json_is_object(k->properties)) {
    const struct place under = schema_under(at, "properties", 0);
    return schema_refuse(b, WN_ERR_FORMAT, &under, "expected an object of schemas");
  }
  WN_TRY(schema_read_rest(b, k->additional, at, "additionalProperties", &shape.rest));
  wn_status status = schema_read_required(b, k->required, at, &required);
  if (status == WN_OK) status = schema_read_properties(b, k, required, &shape, at);
  json_decref(required);
  return status == WN_OK ? wn_schema_add_shape(b, value, &shape) : status;
}

/* --- a schema --- */

static wn_status schema_read_type(struct wn_schema_builder *b, const json_t *type, const struct place *at,
                                  unsigned *types) {
  const struct place under = schema_under(at, "type", 0);
  const size_t n = json_is_array(type) ? json_array_size(type) : 1;
  *types = 0;
  for (size_t i = 0; i < n; i++) {
    const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
    unsigned t = 0;
    while (t < TYPES && (!json_is_string(one) || strcmp(json_string_value(one), type_names[t]) != 0)) t++;
    if (t == TYPES)
      return schema_refuse(b, WN_ERR_FORMAT, &under,
                           "expected object, array, string, number, integer, boolean, null, or a list of them");
    *types |= 1u << t;
  }
  if (n == 0) return schema_refuse(b, WN_ERR_FORMAT, &under, "an empty list of types");
  return WN_OK;
}

/* Reads a schema's keywords. `of`: the types that some of them apply to; *alone: the one that excludes the others. */
static wn_status schema_read_keywords(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                      struct keywords *k, unsigned *of, const char **alone) {
  const char *key, *other = NULL;
  json_t *value;
  *k = (struct keywords){0};
  *of = 0;
  *alone = NULL;
  json_object_foreach((json_t *)(uintptr_t)json, key, value) {
    const struct row *row = rows, *end = rows + sizeof rows / sizeof *rows;
    while (row < end && strcmp(row->name, key) != 0) row++;
    if (row == end) {
      char shown[68];
      wn_line_escape(key, shown, sizeof shown);
      return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" is not served", shown);
    }
    if (row->at == SIZE_MAX) continue;
    *(const json_t **)(void *)((char *)k + row->at) = value;
    *of |= row->of;
    if (row->alone && !*alone)
      *alone = row->name;
    else
      other = row->name;
  }
  if (*alone && other)
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" together with \"%s\" is not served", *alone, other);
  if (*of && (k->enumeration || k->constant))
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" with anything but \"type\" is not served",
                         k->constant ? "const" : "enum");
  return WN_OK;
}

/* One character of a name in a pointer; ~0 and ~1 mean "~" and "/". */
static bool schema_pointer_next(const char **at, char *out) {
  if (**at != '~') {
    *out = *(*at)++;
    return true;
  }
  *out = (*at)[1] == '0' ? '~' : '/';
  if ((*at)[1] != '0' && (*at)[1] != '1') return false;
  *at += 2;
  return true;
}

/* Follows "#/$defs/name" (RFC 6901). NULL: nothing is there. */
static const json_t *schema_pointer(const json_t *json, const char *at) {
  char name[256];
  if (*at++ != '#') return NULL;
  while (json && *at == '/') {
    size_t n = 0;
    for (at++; *at && *at != '/';)
      if (n + 1 == sizeof name || !schema_pointer_next(&at, &name[n++])) return NULL;
    name[n] = 0;
    if (json_is_object(json)) {
      json = json_object_get(json, name);
    } else {
      size_t index = 0;
      for (const char *c = name; *c; c++) {
        if (*c < '0' || *c > '9' || index > 1u << 24) return NULL;
        index = 10 * index + (size_t)(*c - '0');
      }
      json = n > 0 ? json_array_get(json, index) : NULL;
    }
  }
  return *at ? NULL : json;
}

static wn_status schema_read_alone(struct wn_schema_builder *b, const struct keywords *k, const char *alone,
                                   uint32_t value, const struct place *at) {
  const struct place under = schema_under(at, alone, 0);
  uint32_t other;
  if (k->ref) {
    const char *ref = json_string_value(k->ref);
    const json_t *target = ref ? schema_pointer(b->json, ref) : NULL;
    const struct place there = {.key = ref, .depth = at->depth + 1};
    if (!target)
      return schema_refuse(b, WN_ERR_UNSUPPORTED, &under,
                           "expected the place of a schema in this one, such as \"#/$defs/name\"");
    WN_TRY(schema_read(b, target, &there, &other));
    return wn_schema_add_link(b, value, false, other);
  }
  const json_t *list = k->any_of ? k->any_of : k->all_of;
  const size_t n = json_array_size(list);
  if (n == 0) return schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of schemas");
  if (k->all_of && n > 1) return schema_refuse(b, WN_ERR_UNSUPPORTED, &under, "more than one schema is not served");
  if (n > WN_SCHEMA_ALTERNATIVES)
    return schema_refuse(b, WN_ERR_UNSUPPORTED, &under, "%zu schemas; at most %d are served", n,
                         WN_SCHEMA_ALTERNATIVES);
  for (size_t i = 0; i < n; i++) {
    WN_TRY(schema_read_member(b, json_array_get(list, i), at, alone, NULL, i, &other));
    WN_TRY(wn_schema_add_link(b, value, false, other));
  }
  return WN_OK;
}

static wn_status schema_read_types(struct wn_schema_builder *b, const struct keywords *k, unsigned types,
                                   uint32_t value, const struct place *at) {
  const bool bounded = k->minimum || k->maximum || k->above || k->below;
  if (bounded && (types & TYPE_NUMBER))
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" is served with \"type\": \"integer\" only",
                         k->minimum   ? "minimum"
                         : k->maximum ? "maximum"
                         : k->above   ? "exclusiveMinimum"
                                      : "exclusiveMaximum");
  if (types & TYPE_OBJECT) WN_TRY(schema_read_object(b, k, value, at));
  if (types & TYPE_ARRAY) WN_TRY(schema_read_array(b, k, value, at));
  if (types & TYPE_STRING) WN_TRY(schema_read_string(b, k, value, at));
  if (types & TYPE_NUMBER)
    WN_TRY(wn_schema_add_shape(b, value, &(struct wn_shape){.kind = WN_SHAPE_NUMBER}));
  else if (types & TYPE_INTEGER)
    WN_TRY(schema_read_integer(b, k, value, at));
  return wn_schema_literals(b, value, types & TYPE_BOOLEAN, types & TYPE_NULL);
}

static wn_status schema_read_new(struct wn_schema_builder *b, const json_t *json, const struct place *at,
                                 uint32_t value) {
  struct keywords k;
  unsigned of, types = ~0u;
  const char *alone;
  uint32_t any;
  if (json_is_false(json)) return WN_OK;
  if (!json_is_true(json)) {
    WN_TRY(schema_read_keywords(b, json, at, &k, &of, &alone));
    if (alone) return schema_read_alone(b, &k, alone, value, at);
    if (k.type) WN_TRY(schema_read_type(b, k.type, at, &types));
    if (k.constant || k.enumeration) return schema_read_constants(b, &k, types, value, at);
    if (!k.type && (of & TYPE_INTEGER)) of |= TYPE_NUMBER; /* minimum and maximum apply to any number */
    if (k.type || of) return schema_read_types(b, &k, k.type ? types : of, value, at);
  }
  WN_TRY(wn_schema_any(b, &any));
  return wn_schema_add_link(b, value, false, any);
}

static wn_status schema_read(struct wn_schema_builder *b, const json_t *json, const struct place *at, uint32_t *value) {
  struct wn_schema_seen *seen = NULL;
  const bool shared = json_is_true(json) || json_is_false(json); /* jansson has only one of each */
  if (!json_is_object(json) && !shared)
    return schema_refuse(b, WN_ERR_FORMAT, at, "expected a schema: an object, true or false");
  if (at->depth > 4 * WN_SCHEMA_DEPTH)
    return schema_refuse(b, WN_ERR_UNSUPPORTED, at, "nested deeper than %d", 4 * WN_SCHEMA_DEPTH);
  seen = wn_schema_seen(b, json);
  if (seen->json) {
    *value = seen->value;
    return WN_OK;
  }
  WN_TRY(wn_schema_add_value(b, value));
  *seen = (struct wn_schema_seen){json, *value};
  return schema_read_new(b, json, at, *value);
}

wn_status wn_schema_create(wn_context *ctx, const json_t *schema, struct wn_schema **out) {
  struct wn_schema_builder b = {.ctx = ctx, .json = schema};
  const struct place at = {.key = "#"};
  uint32_t root = 0;
  *out = NULL;
  wn_status status = wn_schema_begin(&b);
  if (status == WN_OK) status = schema ? schema_read(&b, schema, &at, &root) : wn_schema_any_object(&b, &root);
  if (status == WN_OK) status = wn_schema_finish(&b, root);
  if (status == WN_OK) *out = b.out, b.out = NULL;
  wn_schema_end(&b);
  return status;
}
