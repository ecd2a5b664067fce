/* Configuration by table: the same entries drive reading, writing and help. */
#include "base/fields.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATH 256

struct reader {
  wn_context *ctx;
  const char *where;
  const struct wn_field_group *groups;
  int group_count;
  char *target;
};

static void field_full_key(const struct wn_field_group *group, const struct wn_field *field, char out[MAX_PATH]) {
  snprintf(out, MAX_PATH, "%s%s%s", group->prefix, *group->prefix ? "." : "", field->key);
}

/* The path behind the group's prefix, or NULL where it does not begin with that. */
static const char *fields_below(const struct wn_field_group *group, const char *path) {
  const size_t n = strlen(group->prefix);
  if (n == 0) return path;
  return strncmp(path, group->prefix, n) == 0 && path[n] == '.' ? path + n + 1 : NULL;
}

static const struct wn_field *fields_find(const struct reader *r, const char *path, size_t *base) {
  for (int g = 0; g < r->group_count; g++) {
    const char *key = fields_below(&r->groups[g], path);
    for (int i = 0; key && i < r->groups[g].count; i++) {
      if (strcmp(r->groups[g].fields[i].key, key) != 0) continue;
      *base = r->groups[g].base;
      return &r->groups[g].fields[i];
    }
  }
  return NULL;
}

wn_status wn_fields_set(wn_context *ctx, json_t *object, const struct wn_field_group *groups, int group_count,
                        const char *assignment) {
  const struct reader r = {.groups = groups, .group_count = group_count};
  const size_t n = strcspn(assignment, "=");
  char key[MAX_PATH];
  size_t base;
  const int fits = snprintf(key, sizeof key, "%.*s", n < sizeof key ? (int)n : 0, assignment);
  const struct wn_field *f = fits > 0 ? fields_find(&r, key, &base) : NULL;
  return wn_json_set(ctx, object, assignment, f && (f->type == WN_FIELD_STRING || f->type == WN_FIELD_EXTRA_STRING));
}

/* Is `path` an object with keys of its own? */
static bool fields_is_section(const struct reader *r, const char *path) {
  const size_t n = strlen(path);
  for (int g = 0; g < r->group_count; g++) {
    const struct wn_field_group *group = &r->groups[g];
    if (n == 0 && group->count > 0) return true;
    const char *key = fields_below(group, path);
    if (!key) { /* the prefix, or the beginning of it */
      const bool leads = strncmp(group->prefix, path, n) == 0 && (group->prefix[n] == '.' || !group->prefix[n]);
      if (leads && group->count > 0) return true;
      continue;
    }
    const size_t m = strlen(key);
    for (int i = 0; i < group->count; i++)
      if (strncmp(group->fields[i].key, key, m) == 0 && group->fields[i].key[m] == '.') return true;
  }
  return false;
}

/* Levenshtein distance. */
static int edit_distance(const char *a, const char *b) {
  int row[MAX_PATH + 1];
  int n = (int)strnlen(b, MAX_PATH);
  for (int j = 0; j <= n; j++) row[j] = j;
  for (int i = 0; a[i] && i < MAX_PATH; i++) {
    int diagonal = row[0];
    row[0] = i + 1;
    for (int j = 1; j <= n; j++) {
      int best = diagonal + (a[i] != b[j - 1]);
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[n];
}

static const char *fields_leaf(const char *path) {
  const char *dot = strrchr(path, '.');
  return dot ? dot + 1 : path;
}

/* Keeps the nearer of the best match so far and this key or object. On a tie the object wins, as it holds more. */
static void fields_consider(const char *path, const char *key, bool section, int *best, char out[MAX_PATH]) {
  int whole = edit_distance(path, key);
  int last = 1 + edit_distance(fields_leaf(path), fields_leaf(key)); /* the right name in the wrong object */
  int distance = whole < last ? whole : last;
  if (distance > *best || (distance == *best && !section)) return;
  *best = distance;
  snprintf(out, MAX_PATH, "%s", key);
}

/* The known key or object nearest to `path`; false if none is near. */
static bool fields_nearest_key(const struct reader *r, const char *path, char out[MAX_PATH]) {
  char key[MAX_PATH];
  int best = 1 << 20;
  for (int g = 0; g < r->group_count; g++) {
    for (int i = 0; i < r->groups[g].count; i++) {
      field_full_key(&r->groups[g], &r->groups[g].fields[i], key);
      fields_consider(path, key, false, &best, out);
      for (char *dot = strrchr(key, '.'); dot; dot = strrchr(key, '.')) {
        *dot = 0;
        fields_consider(path, key, true, &best, out);
      }
    }
  }
  int limit = 1 + (int)strlen(fields_leaf(path)) / 3;
  return best <= (limit < 2 ? 2 : limit);
}

static const char *field_type_name(const json_t *v) {
  switch (json_typeof(v)) {
  case JSON_OBJECT:
    return "an object";
  case JSON_ARRAY:
    return "a list";
  case JSON_STRING:
    return "a string";
  case JSON_INTEGER:
  case JSON_REAL:
    return "a number";
  case JSON_TRUE:
  case JSON_FALSE:
    return "a boolean";
  default:
    return "null";
  }
}

static wn_status field_fail_type(const struct reader *r, const char *path, const char *expected, const json_t *v) {
  return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" must be %s, not %s", r->where, path, expected, field_type_name(v));
}

static wn_status field_fail_range(const struct reader *r, const char *path, const struct wn_field *f,
                                  const char *found) {
  return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is %s; it must be between %.15g and %.15g", r->where, path, found,
                 f->min, f->max);
}

/* Accepts an integer, or a real with a whole value (1e6); false otherwise. */
static bool field_as_integer(const json_t *v, int64_t *out) {
  if (json_is_integer(v)) {
    *out = json_integer_value(v);
    return true;
  }
  double d = json_is_real(v) ? json_real_value(v) : 0.5;
  if (!(fabs(d) <= 0x1p53) || d != floor(d)) return false;
  *out = (int64_t)d;
  return true;
}

static wn_status field_read_unsigned(const struct reader *r, const char *path, const struct wn_field *f,
                                     const json_t *v, char *at) {
  uint64_t value = 0;
  int64_t n;
  if (json_is_string(v)) { /* a string: how values beyond JSON's signed integers are written */
    const char *s = json_string_value(v);
    size_t digits = strspn(s, "0123456789");
    if (digits == 0 || s[digits] || digits > 20) return field_fail_type(r, path, "a whole number of at least 0", v);
    for (size_t i = 0; i < digits; i++)
      if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(s[i] - '0'), &value))
        return field_fail_range(r, path, f, s);
  } else if (field_as_integer(v, &n) && n >= 0) {
    value = (uint64_t)n;
  } else {
    return field_fail_type(r, path, "a whole number of at least 0", v);
  }
  char found[32];
  snprintf(found, sizeof found, "%" PRIu64, value);
  if ((double)value < f->min || (double)value > f->max) return field_fail_range(r, path, f, found);
  memcpy(at, &value, sizeof value);
  return WN_OK;
}

static wn_status field_read_enum(const struct reader *r, const char *path, const struct wn_field *f, const json_t *v,
                                 char *at) {
  if (!json_is_string(v)) return field_fail_type(r, path, "a string", v);
  const char *s = json_string_value(v);
  char all[512] = "", near[MAX_PATH] = "";
  int best = 3;
  size_t used = 0;
  for (int i = 0; f->names[i]; i++) {
    if (!*f->names[i]) continue;
    if (strcmp(s, f->names[i]) == 0) {
      memcpy(at, &i, sizeof i);
      return WN_OK;
    }
    if (used < sizeof all)
      used += (size_t)snprintf(all + used, sizeof all - used, "%s%s",
                               i == 0            ? ""
                               : f->names[i + 1] ? ", "
                                                 : " or ",
                               f->names[i]);
    int distance = edit_distance(s, f->names[i]);
    if (distance < best) {
      best = distance;
      snprintf(near, sizeof near, "; did you mean \"%s\"?", f->names[i]);
    }
  }
  return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is \"%s\"; it must be %s%s", r->where, path, s, all, near);
}

static wn_status field_read(const struct reader *r, const char *path, const struct wn_field *f, size_t base,
                            const json_t *v) {
  char *at = r->target + base + f->offset;
  char found[64];
  int64_t n;
  switch (f->type) {
  case WN_FIELD_BOOL:
  case WN_FIELD_EXTRA_BOOL: {
    if (!json_is_boolean(v)) return field_fail_type(r, path, "true or false", v);
    bool value = json_is_true(v);
    memcpy(at, &value, sizeof value);
    return WN_OK;
  }
  case WN_FIELD_INT:
  case WN_FIELD_INT64:
  case WN_FIELD_EXTRA_INT64: {
    if (!field_as_integer(v, &n)) return field_fail_type(r, path, "a whole number", v);
    snprintf(found, sizeof found, "%" PRId64, n);
    if ((double)n < f->min || (double)n > f->max) return field_fail_range(r, path, f, found);
    if (f->type != WN_FIELD_INT) {
      memcpy(at, &n, sizeof n);
      return WN_OK;
    }
    int value = (int)n;
    if (value != n) return field_fail_range(r, path, f, found);
    memcpy(at, &value, sizeof value);
    return WN_OK;
  }
  case WN_FIELD_UINT64:
    return field_read_unsigned(r, path, f, v, at);
  case WN_FIELD_DOUBLE:
  case WN_FIELD_EXTRA: {
    if (!json_is_number(v)) return field_fail_type(r, path, "a number", v);
    double value = json_number_value(v);
    wn_print(found, sizeof found, "%.15g", value);
    if (!(value >= f->min && value <= f->max)) return field_fail_range(r, path, f, found);
    memcpy(at, &value, sizeof value);
    return WN_OK;
  }
  case WN_FIELD_FORMER:
    if (!json_is_number(v)) return field_fail_type(r, path, "a number", v);
    if (json_number_value(v) != f->min)
      wn_log(r->ctx, WN_LOG_WARNING, "%s: \"%s\" is no longer a key and is ignored: %s", r->where, path, f->help);
    return WN_OK;
  case WN_FIELD_ENUM:
    return field_read_enum(r, path, f, v, at);
  case WN_FIELD_STRING:
  case WN_FIELD_EXTRA_STRING: {
    if (f->min == 1 && json_is_number(v)) {
      wn_print(found, sizeof found, "%.15g", json_number_value(v));
      if ((double)strlen(found) + 1 <= f->max) memcpy(at, found, strlen(found) + 1);
      return WN_OK;
    }
    if (!json_is_string(v)) return field_fail_type(r, path, "a string", v);
    size_t bytes = json_string_length(v) + 1;
    if ((double)bytes > f->max)
      return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: \"%s\" is %zu bytes long; at most %.0f fit", r->where, path, bytes - 1,
                     f->max - 1);
    memcpy(at, json_string_value(v), bytes);
    return WN_OK;
  }
  }
  return WN_ERR_ARGUMENT;
}

static wn_status fields_read_object(const struct reader *r, const char *path, const json_t *object) {
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)(uintptr_t)object, key, v) {
    char inner[MAX_PATH], enabled[MAX_PATH + 16];
    bool fits = (size_t)snprintf(inner, sizeof inner, "%s%s%s", path, *path ? "." : "", key) < sizeof inner;
    bool key_has_dot = strchr(key, '.') != NULL; /* a key spelled "a.b" would be mistaken for the nested key a.b */
    size_t base = 0;
    const struct wn_field *f = fits && !key_has_dot ? fields_find(r, inner, &base) : NULL;
    if (f) {
      WN_TRY(field_read(r, inner, f, base, v));
      continue;
    }
    if (!fits || key_has_dot || !*key || !fields_is_section(r, inner)) {
      char near[MAX_PATH];
      if (fits && fields_nearest_key(r, inner, near))
        return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: unknown key \"%s\"; did you mean \"%s\"?", r->where, inner, near);
      return wn_fail(r->ctx, WN_ERR_CONFIG, "%s: unknown key \"%s%s\"", r->where, inner, fits ? "" : "...");
    }
    snprintf(enabled, sizeof enabled, "%s.enabled", inner);
    f = strlen(enabled) < MAX_PATH ? fields_find(r, enabled, &base) : NULL;
    if (f && json_is_boolean(v)) {
      WN_TRY(field_read(r, enabled, f, base, v));
      continue;
    }
    if (!json_is_object(v)) return field_fail_type(r, inner, f ? "an object, true or false" : "an object", v);
    if (f) {
      bool on = true;
      memcpy(r->target + base + f->offset, &on, sizeof on);
    }
    WN_TRY(fields_read_object(r, inner, v));
  }
  return WN_OK;
}

wn_status wn_fields_read(wn_context *ctx, const char *where, const json_t *object, const struct wn_field_group *groups,
                         int group_count, void *target) {
  if (!json_is_object(object))
    return wn_fail(ctx, WN_ERR_CONFIG, "%s: expected a JSON object, found %s", where,
                   object ? field_type_name(object) : "nothing");
  struct reader r = {.ctx = ctx, .where = where, .groups = groups, .group_count = group_count, .target = target};
  return fields_read_object(&r, "", object);
}

static json_t *field_value(const struct wn_field *f, const char *at) {
  switch (f->type) {
  case WN_FIELD_BOOL:
  case WN_FIELD_EXTRA_BOOL: {
    bool value;
    memcpy(&value, at, sizeof value);
    return json_boolean(value);
  }
  case WN_FIELD_INT: {
    int value;
    memcpy(&value, at, sizeof value);
    return json_integer(value);
  }
  case WN_FIELD_INT64:
  case WN_FIELD_EXTRA_INT64: {
    int64_t value;
    memcpy(&value, at, sizeof value);
    return json_integer(value);
  }
  case WN_FIELD_UINT64: {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    if (value <= INT64_MAX) return json_integer((json_int_t)value);
    char digits[32];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return json_string(digits);
  }
  case WN_FIELD_DOUBLE:
  case WN_FIELD_EXTRA: {
    double value;
    memcpy(&value, at, sizeof value);
    return json_real(value);
  }
  case WN_FIELD_ENUM: {
    int value, n = 0;
    memcpy(&value, at, sizeof value);
    while (f->names[n]) n++;
    return value >= 0 && value < n && *f->names[value] ? json_string(f->names[value]) : NULL;
  }
  case WN_FIELD_STRING:
  case WN_FIELD_EXTRA_STRING:
    return memchr(at, 0, (size_t)f->max) ? json_string(at) : NULL;
  case WN_FIELD_FORMER:
    break;
  }
  return NULL;
}

/* Takes over the caller's reference to value. */
static bool fields_put(json_t *object, const char *path, json_t *value) {
  const char *dot;
  while (value && (dot = strchr(path, '.'))) {
    char name[MAX_PATH];
    snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
    json_t *inner = json_object_get(object, name);
    if (!inner) {
      inner = json_object();
      if (!inner || json_object_set_new(object, name, inner) != 0) {
        json_decref(value);
        return false;
      }
    }
    object = inner;
    path = dot + 1;
  }
  return value && json_object_set_new(object, path, value) == 0;
}

static bool field_is_zero(const char *at) {
  double value;
  memcpy(&value, at, sizeof value);
  return value == 0;
}

static bool group_is_off(const struct wn_field_group *group, const void *source) {
  const struct wn_field *f = &group->fields[0];
  const char *at = (const char *)source + group->base + f->offset;
  bool on = false;
  int number = 0;
  if (f->type == WN_FIELD_ENUM) {
    memcpy(&number, at, sizeof number);
    return number == 0;
  }
  if (f->type != WN_FIELD_BOOL) return field_is_zero(at);
  memcpy(&on, at, sizeof on);
  return !on;
}

static bool field_is_left_out(const struct wn_field *f, const char *at) {
  static const char none[sizeof(int64_t)];
  if (f->type == WN_FIELD_EXTRA_INT64) return !memcmp(at, none, sizeof(int64_t));
  if (f->type == WN_FIELD_EXTRA_BOOL) return !memcmp(at, none, sizeof(bool));
  return f->type == WN_FIELD_FORMER || (f->type == WN_FIELD_EXTRA && field_is_zero(at)) ||
         (f->type == WN_FIELD_EXTRA_STRING && !*at);
}

wn_status wn_fields_write(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *source,
                          json_t **out) {
  *out = NULL;
  json_t *object = json_object();
  if (!object) return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: JSON object");
  for (int g = 0; g < group_count; g++) {
    if (groups[g].optional && group_is_off(&groups[g], source)) continue;
    for (int i = 0; i < groups[g].count; i++) {
      const struct wn_field *f = &groups[g].fields[i];
      char key[MAX_PATH];
      field_full_key(&groups[g], f, key);
      const char *at = (const char *)source + groups[g].base + f->offset;
      if (field_is_left_out(f, at)) continue;
      if (fields_put(object, key, field_value(f, at))) continue;
      json_decref(object);
      return wn_fail(ctx, WN_ERR_CONFIG, "\"%s\" has a value that cannot be written as JSON", key);
    }
  }
  *out = object;
  return WN_OK;
}

static const char *field_type_word(enum wn_field_type type) {
  switch (type) {
  case WN_FIELD_BOOL:
  case WN_FIELD_EXTRA_BOOL:
    return "boolean";
  case WN_FIELD_INT:
  case WN_FIELD_INT64:
  case WN_FIELD_EXTRA_INT64:
  case WN_FIELD_UINT64:
    return "integer";
  case WN_FIELD_DOUBLE:
  case WN_FIELD_EXTRA:
    return "number";
  case WN_FIELD_ENUM:
    return "choice";
  case WN_FIELD_STRING:
  case WN_FIELD_EXTRA_STRING:
    return "string";
  case WN_FIELD_FORMER:
    break;
  }
  return "";
}

wn_status wn_fields_help(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *defaults,
                         char **text) {
  struct wn_text t = {0};
  if (*text) wn_text_add(&t, "%s", *text);
  for (int g = 0; g < group_count; g++) {
    for (int i = 0; i < groups[g].count; i++) {
      const struct wn_field *f = &groups[g].fields[i];
      char key[MAX_PATH], value[128] = "", range[256] = "";
      if (f->type == WN_FIELD_FORMER) continue;
      field_full_key(&groups[g], f, key);
      json_t *v = field_value(f, (const char *)defaults + groups[g].base + f->offset);
      const bool is_text = json_is_string(v);
      if (is_text)
        snprintf(value, sizeof value, f->type == WN_FIELD_ENUM ? "%s" : "\"%s\"", json_string_value(v));
      else if (json_is_boolean(v))
        snprintf(value, sizeof value, "%s", json_is_true(v) ? "true" : "false");
      else if (v)
        wn_print(value, sizeof value, "%.15g", json_number_value(v));
      json_decref(v);
      if (f->type == WN_FIELD_ENUM) {
        size_t used = 0;
        for (int n = 0; f->names[n] && used < sizeof range; n++)
          if (*f->names[n])
            used += (size_t)snprintf(range + used, sizeof range - used, "%s%s", n ? "|" : "", f->names[n]);
      } else if (f->type == WN_FIELD_UINT64 && f->max >= 0x1p64) {
        wn_print(range, sizeof range, "range %.15g..2^64-1", f->min);
      } else if (!is_text && f->type != WN_FIELD_BOOL && f->type != WN_FIELD_EXTRA_BOOL) {
        wn_print(range, sizeof range, "range %.15g..%.15g", f->min, f->max);
      }
      wn_text_add(&t, "  %-40s %-8s default %-14s %s%s%s\n", key, field_type_word(f->type), value, range,
                  *range ? "  " : "", f->help);
    }
  }
  if (t.failed) {
    wn_free(t.data);
    return wn_fail(ctx, WN_ERR_MEMORY, "out of memory: help text");
  }
  wn_free(*text);
  *text = t.data;
  return WN_OK;
}

/* Bytes to compare; for a text, its length. */
static size_t field_bytes(const struct wn_field *f, const char *at) {
  switch (f->type) {
  case WN_FIELD_BOOL:
  case WN_FIELD_EXTRA_BOOL:
    return sizeof(bool);
  case WN_FIELD_INT:
  case WN_FIELD_ENUM:
    return sizeof(int);
  case WN_FIELD_INT64:
  case WN_FIELD_EXTRA_INT64:
  case WN_FIELD_UINT64:
  case WN_FIELD_DOUBLE:
  case WN_FIELD_EXTRA:
    return sizeof(int64_t);
  case WN_FIELD_STRING:
  case WN_FIELD_EXTRA_STRING:
    return strlen(at) + 1;
  case WN_FIELD_FORMER:
    break;
  }
  return 0;
}

bool wn_fields_same(const struct wn_field_group *groups, int group_count, const void *a, const void *b) {
  for (int g = 0; g < group_count; g++)
    for (int i = 0; i < groups[g].count; i++) {
      const struct wn_field *f = &groups[g].fields[i];
      const char *x = (const char *)a + groups[g].base + f->offset, *y = (const char *)b + groups[g].base + f->offset;
      const size_t bytes = field_bytes(f, x);
      if (bytes != field_bytes(f, y) || memcmp(x, y, bytes)) return false;
    }
  return true;
}
