/* Configuration by table: one entry per key drives parsing, range check, default, help and writing. Nested objects are
 * written as dotted keys ("selective.mem.eps"). JSON is parsed by jansson. */
#ifndef WN_BASE_FIELDS_H
#define WN_BASE_FIELDS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/limits.h"
#include "winnow/context.h"

enum wn_field_type {
  WN_FIELD_BOOL,
  WN_FIELD_INT /* int */,
  WN_FIELD_INT64,
  WN_FIELD_UINT64,
  WN_FIELD_DOUBLE,
  WN_FIELD_EXTRA /* double; 0, its default, is not written: configurations without it stay the same */,
  WN_FIELD_EXTRA_BOOL /* the same for a bool */,
  WN_FIELD_EXTRA_INT64 /* the same for an int64_t */,
  WN_FIELD_ENUM /* int-sized enum */,
  WN_FIELD_STRING /* char[max] */,
  WN_FIELD_EXTRA_STRING /* the same; the default, "", is not written */,
  WN_FIELD_FORMER /* a number that is no longer a key. Older files may have it: it is read and ignored, with a warning
                   * if it is not `min`, its default. Never written. help names the replacement */
};

struct wn_field {
  const char *key; /* dotted path inside the object */
  enum wn_field_type type;
  size_t offset;            /* into the struct */
  double min, max;          /* numbers: inclusive range. STRING: max is the array's size; min 1: a number is accepted as
                             * its text */
  const char *const *names; /* ENUM: NULL-terminated, in value order; "" marks a value that cannot be chosen */
  const char *help;         /* one line; the default comes from an initialised struct */
};

/* A row: WN_KEY("span.limit", DOUBLE, offsetof(...), "longest span in tokens", .min = 1, .max = 1e9). */
#define WN_KEY(key_, type_, offset_, ...)                                                                              \
  { .key = (key_), .type = WN_FIELD_##type_, .offset = (offset_), .help = __VA_ARGS__ }

/* A set of tables for one struct. `prefix` (may be "") and a dot come before each key; `base` is added to offsets. */
struct wn_field_group {
  const char *prefix;
  const struct wn_field *fields;
  int count;
  size_t base;
  bool optional; /* not written while its first field is false or 0 */
};

/* Reads the object into `target`, which already holds the defaults. An unknown key gives WN_ERR_CONFIG: "<where>:
 * unknown key \"model.widht\"; did you mean \"model.width\"?". A value out of range gives an error with key, value and
 * range. If an entry "x.enabled" exists, "x": {...} sets it to true unless the object says otherwise, and "x":
 * true/false means {"enabled": ...}. `where` is the file's name in messages. */
wn_status wn_fields_read(wn_context *ctx, const char *where, const json_t *object, const struct wn_field_group *groups,
                         int group_count, void *target);
/* The struct as nested JSON objects; *out is a new reference. */
wn_status wn_fields_write(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *source,
                          json_t **out);
/* Do two structs have the same value for every key? */
bool wn_fields_same(const struct wn_field_group *groups, int group_count, const void *a, const void *b);
/* Applies "a.b.c=value" to a JSON object. The value is parsed as JSON; if that fails it is taken as a string. With
 * `text`, it is a string unless it is a JSON string already: 0110 stays 0110. */
wn_status wn_json_set(wn_context *ctx, json_t *object, const char *assignment, bool text);
/* The same; `text` is set if the key's entry is a string. */
wn_status wn_fields_set(wn_context *ctx, json_t *object, const struct wn_field_group *groups, int group_count,
                        const char *assignment);
/* "  model.width   integer  default 256  range 1..65536  help" lines appended to *text (wn_alloc'd, may start NULL). */
wn_status wn_fields_help(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *defaults,
                         char **text);

/* Parses a file; errors give file, line and column. Duplicate keys are refused; depth, size and number of values are
 * limited by the kind of file. In a tokenizer's configuration all numbers are read as reals. Returns a new
 * reference. */
wn_status wn_json_load_file(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out);
/* The same for a path that the user gave, which may also be a pipe or "-" (wn_file_load). */
wn_status wn_json_load_input(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out);
wn_status wn_json_load_text(wn_context *ctx, enum wn_json_kind kind, const char *where, const char *text, size_t bytes,
                            json_t **out);
/* The number of values in a text, as the limits count them, before parsing. */
size_t wn_json_count(const char *text, size_t bytes);
/* Iterates over the members of an object without parsing the whole. Start with {.where, .text, .bytes}. Each call of
 * wn_json_next finds the next key (with its quotes) and its value; wn_json_load_text parses them (WN_JSON_ENTRY for
 * keys). *more is false after the last. Braces and commas are checked here, keys and values are not. */
struct wn_json_members {
  const char *where, *text;
  size_t bytes, at;
  const char *key, *value;
  size_t key_bytes, value_bytes;
};
wn_status wn_json_next(wn_context *ctx, struct wn_json_members *members, bool *more);
/* Indented text; numbers read back exactly; wn_alloc'd. */
wn_status wn_json_text(wn_context *ctx, const json_t *value, char **out);
wn_status wn_json_save_file(wn_context *ctx, const char *path, const json_t *value);

#endif
