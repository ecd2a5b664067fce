/* Reads JSON schemas (json-schema.org, draft 2020-12), the supported part. There is an entry for each keyword; an
 * unknown keyword is refused by name. Any text generated is valid under the schema; if a schema without a type has
 * keywords of one type, only that type is generated. */
#include "text/schema.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "text/schema_read.h"

enum { CONSTANTS = 4096 }; /* most values of an enum */

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

static const struct row {
  const char *name;
  size_t at;
  unsigned of; /* the type that it applies to; 0: any */
  bool alone;  /* excludes all other keywords but annotations */
} rows[] = {
#define SCHEMA_ROW(keyword, member, types, only)                                                                       \
  { .name = (keyword), .at = offsetof(struct wn_schema_keywords, member), .of = (types), .alone = (only) }
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
    SCHEMA_ROW("pattern", pattern, TYPE_STRING, false),
    SCHEMA_ROW("format", format, TYPE_STRING, false),
    SCHEMA_ROW("minimum", minimum, TYPE_INTEGER, false),
    SCHEMA_ROW("maximum", maximum, TYPE_INTEGER, false),
    SCHEMA_ROW("exclusiveMinimum", above, TYPE_INTEGER, false),
    SCHEMA_ROW("exclusiveMaximum", below, TYPE_INTEGER, false),
    SCHEMA_ROW("multipleOf", multiple, TYPE_INTEGER, false),
    SCHEMA_ROW("enum", enumeration, 0, false),
    SCHEMA_ROW("const", constant, 0, false),
    SCHEMA_ROW("anyOf", any_of, 0, true),
    SCHEMA_ROW("allOf", all_of, 0, true),
    SCHEMA_ROW("$ref", ref, 0, true),
#undef SCHEMA_ROW
};

static const struct row *schema_row(const char *keyword) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(rows[i].name, keyword)) return &rows[i];
  return NULL;
}

static wn_status schema_read(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                             uint32_t *value);

/* Reads one schema inside a list or an object of schemas. */
static wn_status schema_read_member(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                    const char *keyword, const char *key, size_t index, uint32_t *value) {
  const struct wn_schema_place under = wn_schema_under(at, keyword, 0), member = wn_schema_under(&under, key, index);
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
                                  const struct wn_schema_place *at);

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
                                       const struct wn_schema_place *at) {
  const bool object = json_is_object(json);
  const uint32_t n = (uint32_t)(object ? json_object_size(json) : json_array_size(json));
  struct wn_shape shape = {
      .kind = object ? WN_SHAPE_OBJECT : WN_SHAPE_ARRAY, .count = n, .rest = -1, .min = n, .max = n};
  void *member = object ? json_object_iter((json_t *)(uintptr_t)json) : NULL;
  if (at->depth > WN_SCHEMA_DEPTH)
    return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, at, "nested deeper than %d", WN_SCHEMA_DEPTH);
  WN_TRY(wn_schema_add(b, &b->parts, n, &shape.first));
  if (object) WN_TRY(wn_schema_add(b, &b->words, n, &shape.words));
  for (uint32_t i = 0; i < n; i++) {
    const json_t *one = object ? json_object_iter_value(member) : json_array_get(json, i);
    const struct wn_schema_place under = wn_schema_under(at, object ? json_object_iter_key(member) : NULL, i);
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
                                  const struct wn_schema_place *at) {
  struct wn_shape words = {.kind = WN_SHAPE_WORDS};
  for (size_t i = 0; i < count; i++) words.texts += !json_is_object(list[i]) && !json_is_array(list[i]);
  if (words.texts > 0) WN_TRY(wn_schema_add(b, &b->words, words.texts, &words.words));
  for (size_t i = 0, at_word = words.words; i < count; i++) {
    const struct wn_schema_place under = wn_schema_under(at, NULL, i);
    if (json_is_object(list[i]) || json_is_array(list[i]))
      WN_TRY(schema_constant_parts(b, list[i], value, &under));
    else
      WN_TRY(wn_schema_set_word(b, (uint32_t)at_word++, list[i], false, 0));
  }
  wn_schema_sort_words(b, words.words, &words.texts);
  return words.texts > 0 ? wn_schema_add_shape(b, value, &words) : WN_OK;
}

/* enum and const; constants of other types are dropped. */
static wn_status schema_read_constants(struct wn_schema_builder *b, const struct wn_schema_keywords *k, unsigned types,
                                       uint32_t value, const struct wn_schema_place *at) {
  const struct wn_schema_place under = wn_schema_under(at, k->constant ? "const" : "enum", 0);
  const json_t *list[CONSTANTS];
  size_t count = 0;
  if (k->constant && k->enumeration)
    return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"enum\" and \"const\" together are not served");
  const size_t n = k->constant ? 1 : json_array_size(k->enumeration);
  if (n == 0 || n > CONSTANTS)
    return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of 1 to %d values", CONSTANTS);
  for (size_t i = 0; i < n; i++) {
    const json_t *one = k->constant ? k->constant : json_array_get(k->enumeration, i);
    if (schema_type_of(one) & types) list[count++] = one;
  }
  return schema_constants(b, list, count, value, &under);
}

/* --- keywords of types --- */

/* items or additionalProperties: the schema of further elements or of other properties. */
static wn_status schema_read_rest(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                  const char *keyword, int32_t *rest) {
  const struct wn_schema_place under = wn_schema_under(at, keyword, 0);
  uint32_t value;
  *rest = -1;
  if (json_is_false(json)) return WN_OK;
  WN_TRY(json ? schema_read(b, json, &under, &value) : wn_schema_any(b, &value));
  *rest = (int32_t)value;
  return WN_OK;
}

static wn_status schema_read_array(struct wn_schema_builder *b, const struct wn_schema_keywords *k, uint32_t value,
                                   const struct wn_schema_place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_ARRAY, .max = INT64_MAX, .count = (uint32_t)json_array_size(k->prefix)};
  if (k->prefix && !json_is_array(k->prefix)) {
    const struct wn_schema_place under = wn_schema_under(at, "prefixItems", 0);
    return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of schemas");
  }
  WN_TRY(wn_schema_count(b, k->min_items, at, "minItems", &shape.min));
  WN_TRY(wn_schema_count(b, k->max_items, at, "maxItems", &shape.max));
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
static wn_status schema_read_required(struct wn_schema_builder *b, const json_t *list, const struct wn_schema_place *at,
                                      json_t **names) {
  const struct wn_schema_place under = wn_schema_under(at, "required", 0);
  *names = json_object();
  bool failed = !*names;
  for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
    const char *name = json_string_value(json_array_get(list, i));
    if (!name) return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of names");
    failed = json_object_set_new(*names, name, json_true()) != 0;
  }
  if (failed) return wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  if (list && !json_is_array(list)) return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of names");
  return WN_OK;
}

/* The properties in their order, then required names that have no schema of their own. */
static wn_status schema_read_properties(struct wn_schema_builder *b, const struct wn_schema_keywords *k,
                                        json_t *required, struct wn_shape *shape, const struct wn_schema_place *at) {
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

static wn_status schema_read_object(struct wn_schema_builder *b, const struct wn_schema_keywords *k, uint32_t value,
                                    const struct wn_schema_place *at) {
  struct wn_shape shape = {.kind = WN_SHAPE_OBJECT};
  json_t *required = NULL;
  if (k->properties && !json_is_object(k->properties)) {
    const struct wn_schema_place under = wn_schema_under(at, "properties", 0);
    return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected an object of schemas");
  }
  WN_TRY(schema_read_rest(b, k->additional, at, "additionalProperties", &shape.rest));
  wn_status status = schema_read_required(b, k->required, at, &required);
  if (status == WN_OK) status = schema_read_properties(b, k, required, &shape, at);
  json_decref(required);
  return status == WN_OK ? wn_schema_add_shape(b, value, &shape) : status;
}

/* --- a schema --- */

static wn_status schema_read_type(struct wn_schema_builder *b, const json_t *type, const struct wn_schema_place *at,
                                  unsigned *types) {
  const struct wn_schema_place under = wn_schema_under(at, "type", 0);
  const size_t n = json_is_array(type) ? json_array_size(type) : 1;
  *types = 0;
  for (size_t i = 0; i < n; i++) {
    const json_t *one = json_is_array(type) ? json_array_get(type, i) : type;
    unsigned t = 0;
    while (t < TYPES && (!json_is_string(one) || strcmp(json_string_value(one), type_names[t]) != 0)) t++;
    if (t == TYPES)
      return wn_schema_refuse(b, WN_ERR_FORMAT, &under,
                              "expected object, array, string, number, integer, boolean, null, or a list of them");
    *types |= 1u << t;
  }
  if (n == 0) return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "an empty list of types");
  return WN_OK;
}

/* Reads a schema's keywords. `of`: the types that some of them apply to; *alone: one that stands for other schemas;
 * *merges: other keywords hold as well. */
static wn_status schema_read_keywords(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                      struct wn_schema_keywords *k, unsigned *of, const char **alone, bool *merges) {
  const char *key;
  json_t *value;
  *of = 0;
  *alone = NULL;
  *merges = false;
  bool other = false;
  json_object_foreach((json_t *)(uintptr_t)json, key, value) {
    if (wn_schema_is_annotation(key)) continue;
    const struct row *row = schema_row(key);
    if (!row) {
      char shown[68];
      wn_line_escape(key, shown, sizeof shown);
      return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" is not served", shown);
    }
    *(const json_t **)(void *)((char *)k + row->at) = value;
    *of |= row->of;
    if (row->alone && !*alone)
      *alone = row->name;
    else
      other = true;
  }
  *merges = *alone && (other || json_array_size(k->all_of) > 1);
  if (!*alone && *of && (k->enumeration || k->constant))
    return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, at, "\"%s\" with anything but \"type\" is not served",
                            k->constant ? "const" : "enum");
  return WN_OK;
}

static wn_status schema_read_alone(struct wn_schema_builder *b, const struct wn_schema_keywords *k, const char *alone,
                                   uint32_t value, const struct wn_schema_place *at) {
  const struct wn_schema_place under = wn_schema_under(at, alone, 0);
  uint32_t other;
  if (k->ref) {
    const char *ref = json_string_value(k->ref);
    const json_t *target = ref ? wn_schema_pointer(b->json, ref) : NULL;
    const struct wn_schema_place there = {.key = ref, .depth = at->depth + 1};
    if (!target)
      return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, &under,
                              "expected the place of a schema in this one, such as \"#/$defs/name\"");
    WN_TRY(schema_read(b, target, &there, &other));
    return wn_schema_add_link(b, value, false, other);
  }
  const json_t *list = k->any_of ? k->any_of : k->all_of;
  const size_t n = json_array_size(list);
  if (n == 0) return wn_schema_refuse(b, WN_ERR_FORMAT, &under, "expected a list of schemas");
  if (n > WN_SCHEMA_ALTERNATIVES)
    return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, &under, "%zu schemas; at most %d are served", n,
                            WN_SCHEMA_ALTERNATIVES);
  for (size_t i = 0; i < n; i++) {
    WN_TRY(schema_read_member(b, json_array_get(list, i), at, alone, NULL, i, &other));
    WN_TRY(wn_schema_add_link(b, value, false, other));
  }
  return WN_OK;
}

static wn_status schema_read_types(struct wn_schema_builder *b, const struct wn_schema_keywords *k, unsigned types,
                                   uint32_t value, const struct wn_schema_place *at) {
  if (types & TYPE_OBJECT) WN_TRY(schema_read_object(b, k, value, at));
  if (types & TYPE_ARRAY) WN_TRY(schema_read_array(b, k, value, at));
  if (types & TYPE_STRING) WN_TRY(wn_schema_string(b, k, value, at));
  if (types & (TYPE_NUMBER | TYPE_INTEGER)) WN_TRY(wn_schema_number(b, k, !(types & TYPE_NUMBER), value, at));
  return wn_schema_literals(b, value, types & TYPE_BOOLEAN, types & TYPE_NULL);
}

/* Keywords of one type are that type; without any, any value fits. */
static wn_status schema_read_plain(struct wn_schema_builder *b, const struct wn_schema_keywords *k, unsigned of,
                                   uint32_t value, const struct wn_schema_place *at) {
  unsigned types = ~0u;
  uint32_t any;
  if (k->type) WN_TRY(schema_read_type(b, k->type, at, &types));
  if (k->constant || k->enumeration) return schema_read_constants(b, k, types, value, at);
  if (!k->type && (of & TYPE_INTEGER)) of |= TYPE_NUMBER; /* minimum and maximum apply to any number */
  if (k->type || of) return schema_read_types(b, k, k->type ? types : of, value, at);
  WN_TRY(wn_schema_any(b, &any));
  return wn_schema_add_link(b, value, false, any);
}

/* allOf, anyOf and $ref beside other keywords. Each alternative of the first anyOf is merged with all others. */
static wn_status schema_read_merged(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                    uint32_t value) {
  struct wn_schema_keywords k = {.made = true};
  const json_t *merged, *one;
  json_t *choices, *alternative;
  const char *alone;
  bool merges;
  unsigned of;
  size_t i, c;
  wn_status status = wn_schema_merge(b, json, at, &merged, &choices);
  const json_t *list = json_array_get(choices, 0);
  if (status == WN_OK && !list && !json_is_false(merged)) {
    status = schema_read_keywords(b, merged, at, &k, &of, &alone, &merges);
    if (status == WN_OK) status = schema_read_plain(b, &k, of, value, at);
  }
  json_array_foreach(list, i, alternative) {
    json_t *both = json_pack("{s:[O, O]}", "allOf", merged, alternative), *all = json_object_get(both, "allOf");
    for (c = 1; c < json_array_size(choices); c++)
      json_array_append_new(all, json_pack("{s:O}", "anyOf", json_array_get(choices, c)));
    const struct wn_schema_place under = wn_schema_under(at, "anyOf", 0), member = wn_schema_under(&under, NULL, i);
    uint32_t other;
    if (status == WN_OK)
      status = wn_schema_keep(b, both, &one);
    else
      json_decref(both);
    if (status == WN_OK) status = schema_read(b, one, &member, &other);
    if (status == WN_OK) status = wn_schema_add_link(b, value, false, other);
  }
  json_decref(choices);
  return status;
}

static wn_status schema_read_new(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                                 uint32_t value) {
  struct wn_schema_keywords k = {.made = false};
  unsigned of = 0;
  const char *alone = NULL;
  bool merges = false;
  if (json_is_false(json)) return WN_OK;
  if (!json_is_true(json)) WN_TRY(schema_read_keywords(b, json, at, &k, &of, &alone, &merges));
  if (merges) return schema_read_merged(b, json, at, value);
  return alone ? schema_read_alone(b, &k, alone, value, at) : schema_read_plain(b, &k, of, value, at);
}

static wn_status schema_read(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                             uint32_t *value) {
  struct wn_schema_seen *seen = NULL;
  const bool shared = json_is_true(json) || json_is_false(json); /* jansson has only one of each */
  if (!json_is_object(json) && !shared)
    return wn_schema_refuse(b, WN_ERR_FORMAT, at, "expected a schema: an object, true or false");
  if (at->depth > 4 * WN_SCHEMA_DEPTH)
    return wn_schema_refuse(b, WN_ERR_UNSUPPORTED, at, "nested deeper than %d", 4 * WN_SCHEMA_DEPTH);
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
  const struct wn_schema_place at = {.key = "#"};
  uint32_t root = 0;
  *out = NULL;
  wn_status status = wn_schema_begin(&b);
  if (status == WN_OK) status = schema ? schema_read(&b, schema, &at, &root) : wn_schema_any_object(&b, &root);
  if (status == WN_OK) status = wn_schema_finish(&b, root);
  if (status == WN_OK) *out = b.out, b.out = NULL;
  wn_schema_end(&b);
  return status;
}
