/* Merges schemas that hold together: a new schema whose values are those of all of them. Each keyword has a rule; one
 * without is refused where two schemas have it. Properties and elements that several schemas speak of get an allOf of
 * their own, which is merged when it is read. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "text/schema_read.h"

enum { TOGETHER = 64, ENTRIES = 1 << 17 };

struct merging {
  struct wn_schema_builder *b;
  const struct wn_schema_place *at;
  json_t *out, *choices;
  int count;
  bool never, failed; /* no value fits; out of memory */
};

wn_status wn_schema_keep(struct wn_schema_builder *b, json_t *made, const json_t **out) {
  *out = made;
  b->merged += 4 + (uint32_t)json_object_size(made);
  if (!made || json_array_append_new(b->made, made)) return wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  if (b->merged <= ENTRIES) return WN_OK;
  return wn_fail(b->ctx, WN_ERR_UNSUPPORTED, "the schema is too large: schemas that hold together");
}

static json_t *merge_borrow(const json_t *json) {
  return json_incref((json_t *)(uintptr_t)json);
}

/* --- a keyword of two schemas --- */

/* What both allow; NULL: says nothing. */
static json_t *merge_both(const json_t *x, const json_t *y) {
  if (!x || json_is_true(x) || json_is_false(y) || x == y) return y ? merge_borrow(y) : merge_borrow(x);
  if (!y || json_is_true(y) || json_is_false(x)) return merge_borrow(x);
  return json_pack("{s:[O, O]}", "allOf", x, y);
}

static json_t *merge_types(const json_t *x, const json_t *y) {
  json_t *out = json_array();
  const size_t n = json_is_array(x) ? json_array_size(x) : 1, m = json_is_array(y) ? json_array_size(y) : 1;
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < m; k++) {
      const json_t *a = json_is_array(x) ? json_array_get(x, i) : x, *c = json_is_array(y) ? json_array_get(y, k) : y;
      const char *s = json_string_value(a), *t = json_string_value(c);
      const bool narrow = s && t && !strcmp(s, "integer") && !strcmp(t, "number"),
                 wide = s && t && !strcmp(s, "number") && !strcmp(t, "integer");
      if (narrow || (s && t && !strcmp(s, t)))
        json_array_append_new(out, merge_borrow(a));
      else if (wide)
        json_array_append_new(out, merge_borrow(c));
    }
  return out;
}

static json_t *merge_lists(const json_t *x, const json_t *y) {
  json_t *out = json_array();
  const json_t *const both[] = {x, y};
  for (int i = 0; i < 2; i++) {
    if (json_is_array(both[i]))
      json_array_extend(out, (json_t *)(uintptr_t)both[i]);
    else
      json_array_append_new(out, merge_borrow(both[i]));
  }
  return out;
}

static json_t *merge_common(const json_t *x, const json_t *y) {
  json_t *out = json_array(), *one, *other;
  size_t i, k;
  if (json_array_size(x) * json_array_size(y) > ENTRIES) return out;
  json_array_foreach(x, i, one) {
    json_array_foreach(y, k, other) if (json_equal(one, other)) break;
    if (k < json_array_size(y)) json_array_append(out, one);
  }
  return out;
}

/* The least number that is a multiple of both, if it is one of them or both are integers. NULL: neither. */
static json_t *merge_multiples(const json_t *x, const json_t *y) {
  const double a = json_number_value(x), b = json_number_value(y);
  if (!(a > 0) || !(b > 0)) return NULL;
  if (floor(a / b) == a / b) return merge_borrow(x);
  if (floor(b / a) == b / a) return merge_borrow(y);
  int64_t n = json_integer_value(x), m = json_integer_value(y);
  if (!n || !m || a * b >= 1e15) return NULL;
  for (int64_t rest; m; m = rest) rest = n % m, n = m;
  return json_integer(json_integer_value(x) / n * json_integer_value(y));
}

static json_t *merge_more(const json_t *x, const json_t *y) {
  return merge_borrow(json_number_value(x) > json_number_value(y) ? x : y);
}
static json_t *merge_less(const json_t *x, const json_t *y) {
  return merge_borrow(json_number_value(x) < json_number_value(y) ? x : y);
}

static const struct rule {
  const char *name;
  json_t *(*merge)(const json_t *x, const json_t *y); /* NULL: merged with others */
} rules[] = {
    {"type", merge_types},
    {"required", merge_lists},
    {"minItems", merge_more},
    {"minLength", merge_more},
    {"minimum", merge_more},
    {"exclusiveMinimum", merge_more},
    {"maxItems", merge_less},
    {"maxLength", merge_less},
    {"maximum", merge_less},
    {"exclusiveMaximum", merge_less},
    {"pattern", merge_lists},
    {"format", merge_lists},
    {"multipleOf", merge_multiples},
    {"enum", merge_common},
    {"properties", NULL},
    {"additionalProperties", NULL},
    {"items", NULL},
    {"prefixItems", NULL},
};

static json_t *merge_properties(const json_t *x, const json_t *y) {
  json_t *p = json_object_get(x, "properties"), *q = json_object_get(y, "properties"), *out = json_object(), *one;
  const json_t *more = json_object_get(x, "additionalProperties"), *rest = json_object_get(y, "additionalProperties");
  const char *key;
  json_object_foreach(p, key, one) {
    const json_t *other = json_object_get(q, key);
    json_object_set_new(out, key, merge_both(one, other ? other : rest));
  }
  json_object_foreach(q, key, one) if (!json_object_get(p, key)) json_object_set_new(out, key, merge_both(one, more));
  return out;
}

static json_t *merge_elements(const json_t *x, const json_t *y) {
  const json_t *p = json_object_get(x, "prefixItems"), *q = json_object_get(y, "prefixItems");
  const json_t *more = json_object_get(x, "items"), *rest = json_object_get(y, "items");
  const size_t n = json_array_size(p), m = json_array_size(q);
  json_t *out = json_array();
  for (size_t i = 0; i < n || i < m; i++) {
    json_t *one = merge_both(i < n ? json_array_get(p, i) : more, i < m ? json_array_get(q, i) : rest);
    json_array_append_new(out, one ? one : json_true());
  }
  return out;
}

/* Sets a keyword of x to what it and y's allow. */
static void merge_set(json_t *x, const char *name, json_t *value) {
  if (value) json_object_set_new(x, name, value);
}

/* Adds a schema without allOf, anyOf and $ref to x->out. */
static wn_status merge_add(struct merging *x, const json_t *y) {
  const char *key;
  json_t *value, *merged = json_copy(x->out);
  if (json_object_get(y, "properties") || json_object_get(y, "additionalProperties") ||
      json_object_get(x->out, "additionalProperties")) {
    merge_set(merged, "properties", merge_properties(x->out, y));
    merge_set(merged, "additionalProperties",
              merge_both(json_object_get(x->out, "additionalProperties"), json_object_get(y, "additionalProperties")));
  }
  if (json_object_get(y, "prefixItems") || json_object_get(y, "items") || json_object_get(x->out, "items")) {
    if (json_object_get(y, "prefixItems") || json_object_get(x->out, "prefixItems"))
      merge_set(merged, "prefixItems", merge_elements(x->out, y));
    merge_set(merged, "items", merge_both(json_object_get(x->out, "items"), json_object_get(y, "items")));
  }
  json_object_foreach((json_t *)(uintptr_t)y, key, value) {
    const json_t *before = json_object_get(x->out, key);
    const struct rule *r = rules, *end = rules + sizeof rules / sizeof *rules;
    while (r < end && strcmp(r->name, key) != 0) r++;
    if (r < end && !r->merge) continue;
    json_t *both = before && r < end ? r->merge(before, value) : NULL;
    if (before && !both) {
      char shown[68];
      json_decref(merged);
      wn_line_escape(key, shown, sizeof shown);
      return wn_schema_refuse(x->b, WN_ERR_UNSUPPORTED, x->at, "\"%s\" of schemas that hold together is not served",
                              shown);
    }
    merge_set(merged, key, before ? both : merge_borrow(value));
  }
  json_decref(x->out);
  x->out = merged;
  x->failed = x->failed || !merged;
  return WN_OK;
}

/* --- a schema --- */

/* One of the keywords that stand for other schemas. */
static wn_status merge_gather(struct merging *x, const json_t *json);

static wn_status merge_others(struct merging *x, const json_t *json) {
  const json_t *all = json_object_get(json, "allOf"), *any = json_object_get(json, "anyOf"), *one;
  const json_t *ref = json_object_get(json, "$ref");
  size_t i;
  if ((all && json_array_size(all) == 0) || (any && json_array_size(any) == 0))
    return wn_schema_refuse(x->b, WN_ERR_FORMAT, x->at, "\"%s\": expected a list of schemas", any ? "anyOf" : "allOf");
  json_array_foreach(all, i, one) WN_TRY(merge_gather(x, one));
  if (any) x->failed = x->failed || json_array_append(x->choices, (json_t *)(uintptr_t)any) != 0;
  if (!ref) return WN_OK;
  const json_t *target = json_is_string(ref) ? wn_schema_pointer(x->b->json, json_string_value(ref)) : NULL;
  if (target) return merge_gather(x, target);
  return wn_schema_refuse(x->b, WN_ERR_UNSUPPORTED, x->at,
                          "\"$ref\": expected the place of a schema in this one, such as \"#/$defs/name\"");
}

static wn_status merge_gather(struct merging *x, const json_t *json) {
  const char *key;
  json_t *value;
  if (json_is_true(json)) return WN_OK;
  if (json_is_false(json)) {
    x->never = true;
    return WN_OK;
  }
  if (!json_is_object(json))
    return wn_schema_refuse(x->b, WN_ERR_FORMAT, x->at, "\"allOf\": expected schemas: objects, true or false");
  if (++x->count > TOGETHER)
    return wn_schema_refuse(x->b, WN_ERR_UNSUPPORTED, x->at, "more than %d schemas that hold together", TOGETHER);
  json_t *rest = json_object();
  json_object_foreach((json_t *)(uintptr_t)json, key, value) {
    const bool other = !strcmp(key, "allOf") || !strcmp(key, "anyOf") || !strcmp(key, "$ref");
    if (other || wn_schema_is_annotation(key)) continue;
    if (!strcmp(key, "const"))
      x->failed = x->failed || json_object_set_new(rest, "enum", json_pack("[O]", value));
    else if (strcmp(key, "enum") != 0 || !json_object_get(json, "const"))
      x->failed = x->failed || json_object_set(rest, key, value);
  }
  x->b->merged += (uint32_t)json_object_size(json_object_get(rest, "properties"));
  wn_status status = rest ? merge_add(x, rest) : WN_OK;
  json_decref(rest);
  if (status == WN_OK && json_object_get(json, "const") && json_object_get(json, "enum"))
    status = wn_schema_refuse(x->b, WN_ERR_UNSUPPORTED, x->at, "\"enum\" and \"const\" together are not served");
  x->failed = x->failed || !rest;
  return status == WN_OK ? merge_others(x, json) : status;
}

wn_status wn_schema_merge(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                          const json_t **out, json_t **choices) {
  struct merging x = {.b = b, .at = at, .out = json_object(), .choices = json_array()};
  wn_status status = x.out && x.choices ? merge_gather(&x, json) : WN_OK;
  const json_t *enumeration = json_object_get(x.out, "enum"), *type = json_object_get(x.out, "type");
  if (json_is_array(enumeration) && json_array_size(enumeration) == 0) x.never = true;
  if (json_is_array(type) && json_array_size(type) == 0) x.never = true;
  *choices = x.choices;
  if (x.never && status == WN_OK) {
    json_decref(x.out);
    x.out = json_false();
  }
  if (status == WN_OK && x.failed) status = wn_fail(b->ctx, WN_ERR_MEMORY, "out of memory: a schema");
  if (status == WN_OK) return wn_schema_keep(b, x.out, out);
  json_decref(x.out);
  return status;
}

/* --- references --- */

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

const json_t *wn_schema_pointer(const json_t *json, const char *at) {
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
