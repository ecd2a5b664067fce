/* Configuration by table: one row per key gives parsing, range check, default, help and writing.
 * A nested object is a key with dots ("selective.mem.eps"). JSON is jansson's. */
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
  WN_FIELD_EXTRA /* double; 0, its default, is not written: files of configurations without it stay as they are */,
  WN_FIELD_EXTRA_BOOL /* the same of a truth value */,
  WN_FIELD_EXTRA_INT64 /* and of an int64_t */,
  WN_FIELD_ENUM /* int-sized enum */,
  WN_FIELD_STRING /* char[bound] */,
  WN_FIELD_EXTRA_STRING /* the same; "", its default, is not written, as with WN_FIELD_EXTRA */,
  WN_FIELD_FORMER /* a number that is no longer a key: read from older files and ignored, with a warning where it is not
                     `min`, which they have by default; never written; help says what there is instead */
};

struct wn_field {
  const char *key; /* dotted path inside the object */
  enum wn_field_type type;
  size_t offset;            /* into the struct */
  double min, max;          /* numbers: inclusive range; STRING: max is the array's size, min 1: a number
                               stands for its text */
  const char *const *names; /* ENUM: NULL-terminated, in value order; "" for a value that cannot be chosen */
  const char *help;         /* one line; the default is taken from an initialised struct */
};

/* A set of tables over one struct; `prefix` (may be "") is put before each key with a dot, `base` added to offsets. */
struct wn_field_group {
  const char *prefix;
  const struct wn_field *fields;
  int count;
  size_t base;
  bool optional; /* not written while its first field is off, false or 0 */
};

/* Reads the object into `target` (already holding defaults). A key that no row has is WN_ERR_CONFIG:
 * "<where>: unknown key \"model.widht\"; did you mean \"model.width\"?". Out of range names key, value and range.
 * "x": {...} where a row "x.enabled" exists sets it true unless the object says otherwise; "x": true/false is the
 * same as {"enabled": ...}. `where` stands for the file in messages. */
wn_status wn_fields_read(wn_context *ctx, const char *where, const json_t *object, const struct wn_field_group *groups,
                         int group_count, void *target);
/* The struct as nested JSON objects; *out is a new reference. */
wn_status wn_fields_write(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *source,
                          json_t **out);
/* Have two structs the same values under all keys? */
bool wn_fields_same(const struct wn_field_group *groups, int group_count, const void *a, const void *b);
/* Applies "a.b.c=value" to a JSON object: the value is parsed as JSON, and taken as a string where that fails, or, with
 * `text`, where it gives anything but a string: 0110 stays as it stands. */
wn_status wn_json_set(wn_context *ctx, json_t *object, const char *assignment, bool text);
/* The same; `text` where the key's row is a string. */
wn_status wn_fields_set(wn_context *ctx, json_t *object, const struct wn_field_group *groups, int group_count,
                        const char *assignment);
/* "  model.width   integer  default 256  range 1..65536  help" lines appended to *text (wn_alloc'd, may start NULL). */
wn_status wn_fields_help(wn_context *ctx, const struct wn_field_group *groups, int group_count, const void *defaults,
                         char **text);

/* Parsing with file, line and column in the detail; duplicate keys refused; depth bounded, size and number of values by
 * the kind of file. All numbers of a tokenizer's configuration are reals. New reference. */
wn_status wn_json_load_file(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out);
/* The same of a path that the user gave: a pipe and "-" will do as well (wn_file_load). */
wn_status wn_json_load_input(wn_context *ctx, enum wn_json_kind kind, const char *path, json_t **out);
wn_status wn_json_load_text(wn_context *ctx, enum wn_json_kind kind, const char *where, const char *text, size_t bytes,
                            json_t **out);
/* How many values a text has, as the limits count them: before it is parsed. */
size_t wn_json_count(const char *text, size_t bytes);
/* The members of an object one after the other, without parsing the whole: begun as {.where, .text, .bytes}, each call
 * of wn_json_next gives where the next key (with its quotes) and its value lie, in texts that wn_json_load_text takes
 * (WN_JSON_ENTRY for keys); *more is false after the last. What lies between braces and commas is checked, keys and
 * values are not. */
struct wn_json_members {
  const char *where, *text;
  size_t bytes, at;
  const char *key, *value;
  size_t key_bytes, value_bytes;
};
wn_status wn_json_next(wn_context *ctx, struct wn_json_members *members, bool *more);
/* Indented text with numbers that read back exactly; wn_alloc'd. */
wn_status wn_json_text(wn_context *ctx, const json_t *value, char **out);
wn_status wn_json_save_file(wn_context *ctx, const char *path, const json_t *value);

#endif
