/* JSON files and texts. jansson parses; this file limits sizes, adds file, line and column to errors, and writes
 * numbers so that they read back exactly. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/number.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SET_DEPTH 32 /* objects in objects are freed recursively */

static const struct {
  const char *name;
  size_t bytes, values;
} json_kinds[] = {
#define JSON_KIND(id, name, bytes, values) {name, bytes, values},
    WN_JSON_KINDS(JSON_KIND)
#undef JSON_KIND
};

/* A value is the whole text, the first in a list or object, or follows a comma. They are counted before parsing because
 * the parsed values are what takes memory: "[]" becomes 150 bytes. */
size_t wn_json_count(const char *text, size_t bytes) {
  size_t count = 1;
  bool inside = false;
  for (size_t i = 0; i < bytes; i++) {
    const char c = text[i];
    if (inside && c == '\\') {
      i++;
    } else if (c == '"') {
      inside = !inside;
    } else if (!inside) {
      count += c == ',' ? 1 : c == '[' || c == '{' ? 2 : 0;
    }
  }
  return count;
}

wn_status wn_json_load_text(wn_context *ctx, enum wn_json_kind kind, const char *where, const char *text, size_t bytes,
                            json_t **out) {
  *out = NULL;
  if (bytes > json_kinds[kind].bytes)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the JSON is %zu bytes long; %s has at most %zu", where, bytes,
                   json_kinds[kind].name, json_kinds[kind].bytes);
  const size_t values = wn_json_count(text, bytes);
  if (values > json_kinds[kind].values)
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: the JSON has about %zu values; %s has at most %zu", where, values,
                   json_kinds[kind].name, json_kinds[kind].values);
  json_error_t error;
  if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { /* a byte order mark, which some editors write */
    text += 3;
    bytes -= 3;
  }
  /* jansson itself limits the depth (2048) and refuses NUL characters, invalid UTF-8 and numbers that overflow. */
  size_t flags = JSON_REJECT_DUPLICATES | (kind == WN_JSON_ENTRY ? JSON_DECODE_ANY : 0);
  /* transformers writes 10^30 as the maximum length of a model that has none. No number of this file is needed as an
   * integer. */
  if (kind == WN_JSON_TOKENIZER_CONFIG) flags |= JSON_DECODE_INT_AS_REAL;
  *out = json_loadb(text ? text : "", bytes, flags, &error);
  if (!*out && json_error_code(&error) == json_error_out_of_memory)
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: %s", where);
  if (!*out) return wn_fail(ctx, WN_ERR_FORMAT, "%s:%d:%d: %s", where, error.line, error.column, error.text);
  return WN_OK;
}

static void json_skip_space(struct wn_json_members *m) {
  while (m->at < m->bytes &&
         (m->text[m->at] == ' ' || m->text[m->at] == '\n' || m->text[m->at] == '\t' || m->text[m->at] == '\r'))
    m->at++;
}

static wn_status json_expect(wn_context *ctx, struct wn_json_members *m, char what) {
  json_skip_space(m);
  if (m->at < m->bytes && m->text[m->at] == what) {
    m->at++;
    return WN_OK;
  }
  return wn_fail(ctx, WN_ERR_FORMAT, "%s: byte %zu: '%c' is expected", m->where, m->at, what);
}

/* Skips the string that begins here; to the end of the text if it is not closed. */
static void json_skip_string(struct wn_json_members *m) {
  for (m->at++; m->at < m->bytes && m->text[m->at] != '"'; m->at++)
    if (m->text[m->at] == '\\') m->at++;
  m->at = m->at < m->bytes ? m->at + 1 : m->bytes;
}

/* Skips the value that begins here, up to the comma or brace after it. */
static void json_skip_value(struct wn_json_members *m) {
  size_t depth = 0;
  while (m->at < m->bytes) {
    const char c = m->text[m->at];
    if (c == '"') {
      json_skip_string(m);
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return;
    if (c == '{' || c == '[') depth++;
    if (c == '}' || c == ']') depth--;
    m->at++;
  }
}

wn_status wn_json_next(wn_context *ctx, struct wn_json_members *m, bool *more) {
  const bool first = m->at == 0;
  *more = false;
  if (first) WN_TRY(json_expect(ctx, m, '{'));
  json_skip_space(m);
  if (m->at < m->bytes && m->text[m->at] == '}') {
    m->at++;
    json_skip_space(m);
    if (m->at == m->bytes) return WN_OK;
    return wn_fail(ctx, WN_ERR_FORMAT, "%s: byte %zu: nothing is expected after the object", m->where, m->at);
  }
  if (!first) WN_TRY(json_expect(ctx, m, ','));
  WN_TRY(json_expect(ctx, m, '"'));
  m->key = m->text + --m->at;
  json_skip_string(m);
  m->key_bytes = (size_t)(m->text + m->at - m->key);
  WN_TRY(json_expect(ctx, m, ':'));
  json_skip_space(m);
  m->value = m->text + m->at;
  json_skip_value(m);
  m->value_bytes = (size_t)(m->text + m->at - m->value);
  *more = true;
  return WN_OK;
}

static wn_status json_load(wn_context *ctx, enum wn_json_kind kind, const char *path,
                           wn_status (*read)(wn_context *, const char *, size_t, char **, size_t *), json_t **out) {
  *out = NULL;
  char *text;
  size_t bytes;
  WN_TRY(read(ctx, path, json_kinds[kind].bytes, &text, &bytes));
  wn_status status = wn_json_load_text(ctx, kind, path, text, bytes, out);
  wn_free(text);
  return status;
}

wn_status wn_json_load_file(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out) {
  return json_load(ctx, kind, path, wn_file_read, out);
}

wn_status wn_json_load_input(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out) {
  return json_load(ctx, kind, path, wn_file_load, out);
}

/* Prints with 15, 16 or 17 digits, the fewest that read back as the same number. Always has a point or an exponent, so
 * that it stays a real. */
static void json_text_real(struct wn_text *text, double value) {
  char s[40];
  for (int digits = 15; digits <= 17; digits++) {
    wn_print(s, sizeof s, "%.*g", digits, value);
    if (wn_number_read(s, NULL) == value) break;
  }
  bool whole = true;
  for (const char *c = s; *c; c++)
    if (*c == '.' || *c == 'e') whole = false;
  wn_text_add(text, "%s%s", s, whole ? ".0" : "");
}

static void json_text_string(struct wn_text *text, const char *s, size_t bytes) {
  wn_text_add(text, "\"");
  for (size_t i = 0; i < bytes; i++) {
    unsigned char c = (unsigned char)s[i];
    if (c == '"' || c == '\\')
      wn_text_add(text, "\\%c", c);
    else if (c == '\n')
      wn_text_add(text, "\\n");
    else if (c == '\t')
      wn_text_add(text, "\\t");
    else if (c < 32 || c == 127)
      wn_text_add(text, "\\u%04x", c);
    else
      wn_text_add(text, "%c", c);
  }
  wn_text_add(text, "\"");
}

static void json_text_value(struct wn_text *text, const json_t *value, int depth) {
  switch (json_typeof(value)) {
  case JSON_OBJECT: {
    const char *key;
    json_t *item;
    bool first = true;
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
      wn_text_add(text, "%s\n%*s", first ? "{" : ",", 2 * (depth + 1), "");
      json_text_string(text, key, strlen(key));
      wn_text_add(text, ": ");
      json_text_value(text, item, depth + 1);
      first = false;
    }
    if (first)
      wn_text_add(text, "{}");
    else
      wn_text_add(text, "\n%*s}", 2 * depth, "");
    return;
  }
  case JSON_ARRAY:
    wn_text_add(text, "[");
    for (size_t i = 0; i < json_array_size(value); i++) {
      if (i) wn_text_add(text, ", ");
      json_text_value(text, json_array_get(value, i), depth + 1);
    }
    wn_text_add(text, "]");
    return;
  case JSON_STRING:
    json_text_string(text, json_string_value(value), json_string_length(value));
    return;
  case JSON_INTEGER:
    wn_text_add(text, "%lld", (long long)json_integer_value(value));
    return;
  case JSON_REAL:
    json_text_real(text, json_real_value(value));
    return;
  case JSON_TRUE:
    wn_text_add(text, "true");
    return;
  case JSON_FALSE:
    wn_text_add(text, "false");
    return;
  case JSON_NULL:
    wn_text_add(text, "null");
    return;
  }
}

wn_status wn_json_text(wn_context *ctx, const json_t *value, char **out) {
  *out = NULL;
  struct wn_text text = {0};
  json_text_value(&text, value, 0);
  wn_text_add(&text, "\n");
  if (text.failed) {
    wn_free(text.data);
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: JSON text");
  }
  *out = text.data;
  return WN_OK;
}

wn_status wn_json_save_file(wn_context *ctx, const char *path, const json_t *value) {
  char *text;
  WN_TRY(wn_json_text(ctx, value, &text));
  wn_status status = wn_file_write(ctx, path, text, strlen(text));
  wn_free(text);
  return status;
}

wn_status wn_json_set(wn_context *ctx, json_t *object, const char *assignment, bool text) {
  const char *equals = strchr(assignment, '=');
  if (!equals || equals == assignment)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "\"%s\" is not of the form key=value", assignment);
  json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
  if (value && text && !json_is_string(value)) {
    json_decref(value);
    value = NULL;
  }
  if (!value) value = json_string(equals + 1);
  if (!value) return wn_fail(ctx, WN_ERR_ARGUMENT, "the value of \"%s\" is not UTF-8 text", assignment);

  wn_status status = WN_OK;
  const char *key = assignment;
  for (int depth = 0;; depth++) {
    const char *end = key;
    while (end < equals && *end != '.') end++;
    char name[256];
    if (end == key || (size_t)(end - key) >= sizeof name || depth == MAX_SET_DEPTH) {
      int shown = equals - assignment < 200 ? (int)(equals - assignment) : 200;
      status = wn_fail(ctx, WN_ERR_ARGUMENT, "\"%.*s\" is not a key", shown, assignment);
      break;
    }
    memcpy(name, key, (size_t)(end - key));
    name[end - key] = 0;
    json_t *present = json_object_get(object, name);
    if (end == equals) {
      /* x=false on an object {...} means x.enabled=false: it keeps the object's other keys */
      if (json_is_object(present) && json_is_boolean(value)) {
        if (json_object_set(present, "enabled", value) != 0)
          status = wn_fail(ctx, WN_ERR_MEMORY, "out of memory: setting \"%s\"", name);
      } else if (json_object_set(object, name, value) != 0) {
        status = wn_fail(ctx, WN_ERR_ARGUMENT, "cannot set \"%s\": the key is not UTF-8 text or memory ran out", name);
      }
      break;
    }
    if (!json_is_object(present)) {
      json_t *inner = json_object(); /* true or false in the place of an object becomes {"enabled": ...} */
      if (inner && json_is_boolean(present)) json_object_set(inner, "enabled", present);
      if (!inner || json_object_set_new(object, name, inner) != 0) {
        status = wn_fail(ctx, WN_ERR_ARGUMENT, "cannot set \"%s\": the key is not UTF-8 text or memory ran out", name);
        break;
      }
      present = inner;
    }
    object = present;
    key = end + 1;
  }
  json_decref(value);
  return status;
}
