/* response_format: {"type": "text"}, {"type": "json_object"}, beside which a "schema" may stand, or {"type":
 * "json_schema", "json_schema": {"schema"}}. And calls of functions that must come: JSON under a schema of one call,
 * which is made of the functions' schemas. */
#include "serve/format.h"

#include <stdio.h>
#include <stdlib.h>

/* Makes a constraint from the schema's text, so that the usual limits apply; NULL: any object. */
static bool format_constraint(const struct wn_serve_model *m, const char *field, const char *schema,
                              wn_constraint **out, struct wn_serve_error *error) {
  const wn_status status = wn_constraint_create_json(m->ctx, m->tok, schema, schema ? strlen(schema) : 0, out);
  if (status == WN_OK) return true;
  return wn_serve_refuse(error, status == WN_ERR_MEMORY ? 503 : 400, field, "%s: %s", field, wn_context_error(m->ctx));
}

/* Makes a constraint from a schema, which it releases. */
static bool format_schema(const struct wn_serve_model *m, const char *field, json_t *schema, wn_constraint **out,
                          struct wn_serve_error *error) {
  char *text = schema ? json_dumps(schema, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(schema);
  if (!text) return wn_serve_refuse(error, 503, field, "out of memory");
  const bool good = format_constraint(m, field, text, out, error);
  free(text);
  return good;
}

static bool format_read_schema(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                               struct wn_serve_error *error) {
  static const char *const keys[] = {"name", "description", "schema", "strict"};
  const json_t *schema = json_object_get(value, "schema"), *strict = json_object_get(value, "strict");
  const json_t *name = json_object_get(value, "name"), *description = json_object_get(value, "description");
  if (!wn_serve_check_keys(value, "response_format.json_schema", "response_format", keys, 4, error)) return false;
  if ((name && !json_is_string(name) && !json_is_null(name)) ||
      (description && !json_is_string(description) && !json_is_null(description)) ||
      (strict && !json_is_boolean(strict) && !json_is_null(strict)))
    return wn_serve_refuse(error, 400, "response_format",
                           "response_format.json_schema: expected name and description, texts, and strict, true or "
                           "false");
  if (!json_is_object(schema))
    return wn_serve_refuse(error, 400, "response_format", "response_format.json_schema.schema: expected a JSON schema");
  return format_schema(m, "response_format", json_incref((json_t *)(uintptr_t)schema), out, error);
}

bool wn_serve_format(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                     struct wn_serve_error *error) {
  static const char *const plain[] = {"type", "schema"}, *const keys[] = {"type", "json_schema"};
  const char *type = json_string_value(json_object_get(value, "type"));
  const bool schema = type && !strcmp(type, "json_schema"), object = type && !strcmp(type, "json_object");
  if (!schema && !object && !(type && !strcmp(type, "text")))
    return wn_serve_refuse(error, 400, "response_format",
                           "response_format.type: expected \"text\", \"json_object\" or \"json_schema\"");
  if (!wn_serve_check_keys(value, "response_format", "response_format", schema ? keys : plain, schema || object ? 2 : 1,
                           error))
    return false;
  json_t *beside = json_object_get(value, "schema"); /* llama-server's form */
  if (object && json_is_object(beside)) return format_schema(m, "response_format", json_incref(beside), out, error);
  if (object && beside && !json_is_null(beside))
    return wn_serve_refuse(error, 400, "response_format", "response_format.schema: expected a JSON schema");
  if (schema) {
    const json_t *inside = json_object_get(value, "json_schema");
    if (!json_is_object(inside))
      return wn_serve_refuse(error, 400, "response_format", "response_format.json_schema: expected an object");
    return format_read_schema(m, inside, out, error);
  }
  return !object || format_constraint(m, "response_format", NULL, out, error);
}

/* --- calls --- */

bool wn_serve_calls_must(const json_t *body) {
  const json_t *choice = json_object_get(body, "tool_choice");
  const char *text = json_string_value(choice);
  return json_is_object(choice) || (text && !strcmp(text, "required"));
}

/* References of a function's schema begin at that schema, which stands at `place` now. */
static bool format_move_refs(json_t *schema, const char *place) {
  const char *key;
  json_t *value;
  size_t i;
  bool good = true;
  json_array_foreach(schema, i, value) good = good && format_move_refs(value, place);
  json_object_foreach(schema, key, value) {
    const char *ref = strcmp(key, "$ref") != 0 ? NULL : json_string_value(value);
    if (ref && *ref == '#')
      good = good && json_object_set_new(schema, key, json_sprintf("%s%s", place, ref + 1)) == 0;
    else if (strcmp(key, "const") != 0 && strcmp(key, "enum") != 0)
      good = good && format_move_refs(value, place);
  }
  return good;
}

/* The schema of a function's arguments, an object; without one there are none. */
static json_t *format_arguments(const json_t *function, const char *place) {
  static const char *const says[] = {"type", "$ref", "anyOf", "allOf", "enum", "const"};
  const json_t *given = json_object_get(function, "parameters");
  json_t *out = json_object_size(given) > 0 ? json_deep_copy(given)
                                            : json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 0);
  bool typed = false;
  for (size_t i = 0; i < sizeof says / sizeof *says; i++) typed = typed || json_object_get(out, says[i]);
  if (out && !typed) json_object_set_new(out, "type", json_string("object"));
  if (out && format_move_refs(out, place)) return out;
  json_decref(out);
  return NULL;
}

bool wn_serve_calls_format(const struct wn_serve_model *m, const json_t *body, const struct wn_call_form *form,
                           wn_constraint **out, struct wn_serve_error *error) {
  const json_t *choice = json_object_get(body, "tool_choice"), *tool;
  const char *only = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
  json_t *calls = json_array();
  bool good = calls;
  size_t i;
  json_array_foreach(json_object_get(body, "tools"), i, tool) {
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    char place[64];
    if (only && strcmp(only, name) != 0) continue;
    snprintf(place, sizeof place, "#%s/anyOf/%zu/properties/%s", form->list ? "/items" : "", json_array_size(calls),
             form->arguments);
    json_t *arguments = format_arguments(function, place);
    good = good && arguments &&
           !json_array_append_new(calls, json_pack("{s:s, s:{s:{s:s}, s:O}, s:[s, s], s:b}", "type", "object",
                                                   "properties", "name", "const", name, form->arguments, arguments,
                                                   "required", "name", form->arguments, "additionalProperties", 0));
    json_decref(arguments);
  }
  json_t *schema = good ? json_pack("{s:O}", "anyOf", calls) : NULL;
  json_decref(calls);
  if (schema && form->list)
    schema = json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", schema, "minItems", 1, "maxItems", 1);
  return format_schema(m, "tool_choice", schema, out, error);
}
