/* A validator of JSON schemas that is written for tests: as slow and as plain as can be. */
#ifndef WN_TESTS_TEXT_VALIDATOR_H
#define WN_TESTS_TEXT_VALIDATOR_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <math.h>
#include <pcre2.h>

#include "support.h"

static inline const json_t *target_of(const json_t *root, const json_t *schema) {
  for (const char *ref; (ref = json_string_value(json_object_get(schema, "$ref")));)
    schema = !strcmp(ref, "#") ? root : json_object_get(json_object_get(root, "$defs"), ref + strlen("#/$defs/"));
  return schema;
}

static inline bool is_type(const json_t *value, const char *type) {
  return !strcmp(type, "object")   ? json_is_object(value)
         : !strcmp(type, "array")  ? json_is_array(value)
         : !strcmp(type, "string") ? json_is_string(value)
         : !strcmp(type, "number") ? json_is_number(value)
         : !strcmp(type, "integer")
             ? json_is_number(value) && floor(json_number_value(value)) == json_number_value(value)
         : !strcmp(type, "boolean") ? json_is_boolean(value)
                                    : json_is_null(value);
}

static inline int64_t characters(const json_t *string) {
  int64_t n = 0;
  for (const char *c = json_string_value(string); *c; c++) n += ((unsigned char)*c & 0xC0) != 0x80;
  return n;
}

static inline bool within(const json_t *schema, const char *min, const char *max, double value) {
  const json_t *low = json_object_get(schema, min), *high = json_object_get(schema, max);
  return !(low && value < json_number_value(low)) && !(high && value > json_number_value(high));
}

/* Does PCRE2 find the pattern? */
static inline bool matches(const char *pattern, const char *text) {
  int error;
  PCRE2_SIZE at;
  pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS, &error, &at, NULL);
  if (!code) fail_msg("PCRE2 does not read %s: error %d at %zu", pattern, error, at);
  pcre2_match_data *data = pcre2_match_data_create(1, NULL);
  const int found = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL);
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  if (found < PCRE2_ERROR_NOMATCH) fail_msg("PCRE2 gives up on %s: %d", pattern, found);
  return found >= 0;
}

static inline bool string_is_valid(const json_t *schema, const json_t *value) {
  const char *pattern = json_string_value(json_object_get(schema, "pattern"));
  return (!pattern || matches(pattern, json_string_value(value))) &&
         within(schema, "minLength", "maxLength", (double)characters(value));
}

static inline bool number_is_valid(const json_t *schema, double value) {
  const json_t *above = json_object_get(schema, "exclusiveMinimum"),
               *below = json_object_get(schema, "exclusiveMaximum");
  const double multiple = json_number_value(json_object_get(schema, "multipleOf"));
  if ((above && value <= json_number_value(above)) || (below && value >= json_number_value(below))) return false;
  if (multiple > 0 && fabs(value / multiple - round(value / multiple)) > 1e-6) return false;
  return within(schema, "minimum", "maximum", value);
}

static inline bool is_valid(const json_t *root, const json_t *schema, const json_t *value);

static inline bool object_is_valid(const json_t *root, const json_t *schema, const json_t *value) {
  const json_t *properties = json_object_get(schema, "properties"),
               *rest = json_object_get(schema, "additionalProperties");
  const json_t *required = json_object_get(schema, "required");
  const char *key;
  json_t *member;
  for (size_t i = 0; i < json_array_size(required); i++)
    if (!json_object_get(value, json_string_value(json_array_get(required, i)))) return false;
  json_object_foreach((json_t *)(uintptr_t)value, key, member) {
    const json_t *own = json_object_get(properties, key);
    if (own ? !is_valid(root, own, member) : rest && !is_valid(root, rest, member)) return false;
  }
  return true;
}

static inline bool array_is_valid(const json_t *root, const json_t *schema, const json_t *value) {
  const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
  for (size_t i = 0; i < json_array_size(value); i++) {
    const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
    if (own && !is_valid(root, own, json_array_get(value, i))) return false;
  }
  return within(schema, "minItems", "maxItems", (double)json_array_size(value));
}

static inline bool is_valid(const json_t *root, const json_t *schema, const json_t *value) {
  const json_t *other = json_object_size(schema) > 1 ? target_of(root, schema) : schema;
  if (other != schema && !is_valid(root, other, value)) return false; /* $ref beside other keywords */
  if (other == schema) schema = target_of(root, schema);
  if (json_is_boolean(schema)) return json_is_true(schema);
  const json_t *type = json_object_get(schema, "type"), *among = json_object_get(schema, "enum");
  const json_t *one = json_object_get(schema, "const"), *any_of = json_object_get(schema, "anyOf");
  bool fits = !type || (json_is_string(type) && is_type(value, json_string_value(type)));
  for (size_t i = 0; i < json_array_size(type); i++)
    fits = fits || is_type(value, json_string_value(json_array_get(type, i)));
  if (!fits || (one && !json_equal((json_t *)(uintptr_t)one, (json_t *)(uintptr_t)value))) return false;
  fits = !among;
  for (size_t i = 0; i < json_array_size(among); i++)
    fits = fits || json_equal(json_array_get(among, i), (json_t *)(uintptr_t)value);
  if (!fits) return false;
  fits = !any_of;
  for (size_t i = 0; i < json_array_size(any_of); i++) fits = fits || is_valid(root, json_array_get(any_of, i), value);
  if (!fits) return false;
  const json_t *all_of = json_object_get(schema, "allOf");
  for (size_t i = 0; i < json_array_size(all_of); i++)
    if (!is_valid(root, json_array_get(all_of, i), value)) return false;
  if (json_is_object(value) && !object_is_valid(root, schema, value)) return false;
  if (json_is_array(value) && !array_is_valid(root, schema, value)) return false;
  if (json_is_string(value) && !string_is_valid(schema, value)) return false;
  return !json_is_number(value) || number_is_valid(schema, json_number_value(value));
}

#endif
