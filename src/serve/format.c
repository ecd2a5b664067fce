/* response_format: {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"schema"}}. */
#include "serve/format.h"

#include <stdlib.h>
#include <string.h>

#include "winnow/constraint.h"

/* Makes a constraint from the schema's text, so that the usual limits apply; NULL: any object. */
static bool format_constraint(const struct wn_serve_model *m, const char *schema, wn_constraint **out,
                              struct wn_serve_error *error) {
  const wn_status status = wn_constraint_create_json(m->ctx, m->tok, schema, schema ? strlen(schema) : 0, out);
  if (status == WN_OK) return true;
  return wn_serve_refuse(error, status == WN_ERR_MEMORY ? 503 : 400, "response_format", "response_format: %s",
                         wn_context_error(m->ctx));
}

static bool format_read_schema(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                               struct wn_serve_error *error) {
  static const char *const keys[] = {"name", "description", "schema", "strict"};
  const json_t *schema = json_object_get(value, "schema"), *strict = json_object_get(value, "strict");
  const json_t *name = json_object_get(value, "name"), *description = json_object_get(value, "description");
  if (!wn_serve_check_keys(value, "response_format.json_schema", "response_format", keys, 4, error)) return false;
  if ((name && !json_is_string(name)) || (description && !json_is_string(description)) ||
      (strict && !json_is_boolean(strict) && !json_is_null(strict)))
    return wn_serve_refuse(error, 400, "response_format",
                           "response_format.json_schema: expected name and description, texts, and strict, true or "
                           "false");
  if (!json_is_object(schema))
    return wn_serve_refuse(error, 400, "response_format", "response_format.json_schema.schema: expected a JSON schema");
  char *text = json_dumps(schema, JSON_COMPACT);
  if (!text) return wn_serve_refuse(error, 503, "response_format", "out of memory");
  const bool good = format_constraint(m, text, out, error);
  free(text);
  return good;
}

bool wn_serve_format(const struct wn_serve_model *m, const json_t *value, wn_constraint **out,
                     struct wn_serve_error *error) {
  static const char *const plain[] = {"type"}, *const keys[] = {"type", "json_schema"};
  const char *type = json_string_value(json_object_get(value, "type"));
  const bool schema = type && !strcmp(type, "json_schema"), object = type && !strcmp(type, "json_object");
  if (!schema && !object && !(type && !strcmp(type, "text")))
    return wn_serve_refuse(error, 400, "response_format",
                           "response_format.type: expected \"text\", \"json_object\" or \"json_schema\"");
  if (!wn_serve_check_keys(value, "response_format", "response_format", schema ? keys : plain, schema ? 2 : 1, error))
    return false;
  if (schema) {
    const json_t *inside = json_object_get(value, "json_schema");
    if (!json_is_object(inside))
      return wn_serve_refuse(error, 400, "response_format", "response_format.json_schema: expected an object");
    return format_read_schema(m, inside, out, error);
  }
  return !object || format_constraint(m, NULL, out, error);
}
